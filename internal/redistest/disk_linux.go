package redistest

import (
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// StartFull starts a server whose disk is full, so that it can't write its append-only file, until free is called.
func StartFull(tb testing.TB) (s *Server, free func()) {
	tb.Helper()
	signal.Ignore(syscall.SIGXFSZ) // the server inherits that, and gets an error instead
	s = Start(tb, 1, "--appendonly", "yes", "--appendfsync", "everysec")[0]
	limit := func(bytes uint64) {
		tb.Helper()
		var former unix.Rlimit
		if err := unix.Prlimit(s.Process(), unix.RLIMIT_FSIZE, nil, &former); err != nil {
			tb.Fatal(err)
		}
		former.Cur = min(bytes, former.Max)
		if err := unix.Prlimit(s.Process(), unix.RLIMIT_FSIZE, &former, nil); err != nil {
			tb.Fatal(err)
		}
	}
	limit(1)
	return s, func() { limit(unix.RLIM_INFINITY) }
}
