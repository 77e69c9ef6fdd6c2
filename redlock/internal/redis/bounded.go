package redis

import (
	"bufio"
	"io"
	"net"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	maxGreeting = 8 << 20 // bytes of all that a server says to go-redis: the slots of a large cluster are the longest
	maxDepth    = 8       // of arrays in arrays
)

// boundedConn is a connection as go-redis reads it. go-redis makes room for whatever a server announces, and panics where that is too
// much: so it gets whole values only, which have been received, and no more of them than a greeting has.
type boundedConn struct {
	net.Conn
	in    *bufio.Reader // of the connection
	room  int64         // how many bytes may still come
	value []byte        // the last one
	rest  []byte        // what go-redis hasn't read of it yet
}

// bounded returns a connection for go-redis, which reads from in. Its writes hear alerts of TLS.
func bounded(raw net.Conn, in *bufio.Reader) net.Conn {
	return &boundedConn{Conn: hearsAlerts(raw), in: in, room: maxGreeting}
}

func (c *boundedConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		c.value = c.value[:0]
		if err := c.take(0); err != nil {
			return 0, err
		}
		c.rest = c.value
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// take receives one value, at this depth of arrays.
func (c *boundedConn) take(depth int) error {
	line, err := readLine(c.in)
	if err != nil {
		return err
	}
	kind, n, _, err := parseLine(line)
	if err != nil {
		return err
	}
	if c.room -= int64(len(line)); c.room < 0 || depth > maxDepth {
		return protocol.ErrMalformed
	}
	c.value = append(c.value, line...)
	switch kind {
	case '*':
		for range n {
			if err := c.take(depth + 1); err != nil {
				return err
			}
		}
	case '$':
		if n > c.room-2 {
			return protocol.ErrMalformed
		}
		c.room -= n + 2
		start := len(c.value)
		c.value = append(c.value, make([]byte, n+2)...)
		_, err = io.ReadFull(c.in, c.value[start:])
	}
	return err
}
