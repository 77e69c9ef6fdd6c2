package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// alertTime is for reading what has arrived on a connection that is closed.
const alertTime = 100 * time.Millisecond

// peerTrouble adds to a failed greeting what the peer seems to be, unless it is a Redis server, which gives the
// reason itself. late is the context's error.
func peerTrouble(err, late error, secure bool) error {
	var noTLS tls.RecordHeaderError
	var dial *net.OpError
	switch {
	case errors.As(err, &noTLS):
		return fmt.Errorf("%w (it does not speak TLS on this port: write redis:// instead of rediss://)", err)
	case errors.As(err, &dial) && dial.Op == "dial":
		return err
	case errors.Is(late, context.DeadlineExceeded) && secure:
		return errors.New("no answer to the TLS handshake or the greeting: if the server does not speak TLS on this port, write redis:// instead of rediss://")
	case errors.Is(late, context.DeadlineExceeded):
		return errors.New("no answer to the greeting: the server hangs, or it is no Redis server")
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), strings.HasPrefix(err.Error(), "redis: "):
		return fmt.Errorf("%w at the greeting: this is no Redis server, or it speaks TLS on this port (write rediss://), or it is a proxy such as twemproxy, which can't be used, or its maxclients are reached", err)
	}
	return err
}

// alertedConn is a TLS connection whose writes fail with the reason that the server has given. A server that doesn't take the
// client's certificate tells it after the handshake, when the client may be writing to a connection that is closed.
type alertedConn struct{ *tls.Conn }

// hearsAlerts is for greetings, in which nobody else reads.
func hearsAlerts(raw net.Conn) net.Conn {
	if secure, ok := raw.(*tls.Conn); ok {
		return alertedConn{secure}
	}
	return raw
}

func (c alertedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		var alert *net.OpError
		_ = c.SetReadDeadline(time.Now().Add(alertTime))
		if _, errRead := c.Read(make([]byte, 1)); errors.As(errRead, &alert) && alert.Op == "remote error" {
			err = errRead
		}
	}
	return n, err
}
