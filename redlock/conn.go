package redlock

import (
	"context"
	"errors"
	"net"
	"time"
)

// rest is for how long a connection that isn't used is taken for alive: long beside the time between two
// commands of a busy process, and short beside anything else.
const rest = time.Millisecond

// errClosed says that the server had closed the connection before anything was sent.
var errClosed = errors.New("connection was closed by the server")

// restedConn looks whether the server has closed the connection when it is used after a rest. go-redis
// looks each time, with a system call and three allocations for each command; but not where it doesn't
// find the system's connection, which this hides from it.
type restedConn struct {
	net.Conn
	used time.Time
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

func (dial dialer) rested(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &restedConn{conn, time.Now()}, nil
}

func (c *restedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.used = time.Now()
	return n, err
}

func (c *restedConn) Write(p []byte) (int, error) {
	if now := time.Now(); now.Sub(c.used) > rest {
		if hasEnded(c.Conn) {
			return 0, errClosed
		}
		c.used = now
	}
	return c.Conn.Write(p)
}
