package redistest

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// The servers inherit that the signal is ignored, and get an error where Fill lets them write no more.
func init() { signal.Ignore(syscall.SIGXFSZ) }

// Fill makes the server's disk full, so that it can't write its append-only file, until free is called. With appendfsync always, it would
// exit.
func (s *Server) Fill() (free func()) {
	limit := func(bytes uint64) {
		s.tb.Helper()
		var former unix.Rlimit
		if err := unix.Prlimit(s.Process(), unix.RLIMIT_FSIZE, nil, &former); err != nil {
			s.tb.Fatal(err)
		}
		former.Cur = min(bytes, former.Max)
		if err := unix.Prlimit(s.Process(), unix.RLIMIT_FSIZE, &former, nil); err != nil {
			s.tb.Fatal(err)
		}
	}
	limit(1)
	return func() { limit(unix.RLIM_INFINITY) }
}
