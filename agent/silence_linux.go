package agent

import (
	"net"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged ends a connection if the other side doesn't acknowledge data in time. SetKeepAlive probes idle connections only.
func limitUnacknowledged(t *net.TCPConn) {
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
}
