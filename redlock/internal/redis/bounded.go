package redis

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	maxGreeting = 8 << 20 // bytes of all that a server says to go-redis: the slots of a large cluster are the longest
	maxDepth    = 8       // of arrays in arrays
)

// boundedConn is a connection as go-redis reads it. go-redis allocates whatever a server announces, and panics if that is too much. So it gets only
// whole values that have been received, and at most the size of a greeting.
type boundedConn struct {
	net.Conn
	in    *bufio.Reader // of the connection
	room  int64         // how many bytes may still come
	value []byte        // the last value
	rest  []byte        // the part of it that go-redis hasn't read yet

	refused string // the text of the last value, if it is an error
}

// bounded returns a connection for go-redis, which reads from in.
func bounded(raw net.Conn, in *bufio.Reader) net.Conn {
	return &boundedConn{Conn: raw, in: in, room: maxGreeting}
}

// lastWordsTime is the time for reading the rest on a closed connection.
const lastWordsTime = 100 * time.Millisecond

// Write fails with the server's reason if the server has closed the connection, on which we may still be writing: it has too many connections, is in
// protected mode, or refuses our certificate, which it tells after the handshake.
func (c *boundedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	_ = c.SetReadDeadline(time.Now().Add(lastWordsTime))
	var alert *net.OpError
	if errRead := c.next(); errors.As(errRead, &alert) && alert.Op == "remote error" {
		return n, errRead
	}
	return n, c.reason(err)
}

func (c *boundedConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		if err := c.next(); err != nil {
			return 0, c.reason(err)
		}
		c.rest = c.value
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next receives the next value.
func (c *boundedConn) next() error {
	c.value = c.value[:0]
	if err := c.receive(0); err != nil {
		return err
	}
	c.refused = ""
	if text, refused := bytes.CutPrefix(c.value, []byte("-")); refused {
		c.refused = string(bytes.TrimSpace(text))
	}
	return nil
}

// reason returns, for an error of a closed connection, the server's words when it refused the command before. go-redis takes the refusal of its first
// command for an old server's, and goes on.
func (c *boundedConn) reason(err error) error {
	if c.refused == "" || !isClosed(err) {
		return err
	}
	text, _, _ := strings.Cut(c.refused, ". ") // what a server in protected mode says has twelve sentences
	return lastWords(text)
}

// receive reads one value, at this depth of arrays.
func (c *boundedConn) receive(depth int) error {
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
			if err := c.receive(depth + 1); err != nil {
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
