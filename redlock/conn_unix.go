//go:build unix

package redlock

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// hasEnded says whether the other side has closed a connection, without reading from it.
func hasEnded(conn net.Conn) bool {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	plain, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := plain.SyscallConn()
	if err != nil {
		return true
	}
	var n int
	var peeked error
	err = raw.Control(func(fd uintptr) {
		n, _, peeked = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	if errors.Is(peeked, syscall.EAGAIN) || errors.Is(peeked, syscall.EINTR) { // nothing to read, as it should be
		return false
	}
	return err != nil || peeked != nil || n == 0
}
