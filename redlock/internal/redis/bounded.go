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
	maxGreeting = 8 << 20 // the most bytes that a server may send to go-redis: the slots of a large cluster are the longest reply
	maxDepth    = 8       // the most levels of arrays in arrays
)

// boundedConn is a connection as go-redis reads it. go-redis allocates whatever length a server announces, and panics if that is too much. So it gets
// only values that have been received as a whole, and no more bytes than a greeting may have.
type boundedConn struct {
	net.Conn
	in    *bufio.Reader
	room  int64 // how many bytes may still come
	value []byte
	rest  []byte // the part of value that go-redis hasn't read yet

	refused string // the text of the last value, if it is an error
}

// bounded returns a connection for go-redis, which reads from in.
func bounded(raw net.Conn, in *bufio.Reader) net.Conn {
	return &boundedConn{Conn: raw, in: in, room: maxGreeting}
}

// lastWordsTime is how long Write looks for the server's reason on a connection that the server has closed.
const lastWordsTime = 100 * time.Millisecond

// Write fails with the server's reason if the server has closed the connection while we were still writing: because it has too many connections, is
// in protected mode, or refuses our certificate, which a server says only after the handshake.
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

// reason returns the error of a closed connection. If the server refused the command before, that is the server's text: go-redis takes a refusal of
// its first command for the refusal of an old server, and goes on.
func (c *boundedConn) reason(err error) error {
	if c.refused == "" || !isClosed(err) {
		return err
	}
	text, _, _ := strings.Cut(c.refused, ". ") // the text of a server in protected mode has twelve sentences
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
