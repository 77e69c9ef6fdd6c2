package agent

import (
	"net"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged makes the kernel end a connection whose other side doesn't acknowledge data in time. Keepalive probes don't cover this case,
// because the kernel sends them only while all data is acknowledged.
func limitUnacknowledged(t *net.TCPConn) {
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
}
