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
	maxGreeting = 8 << 20 // the largest number of bytes that a server may send to go-redis; the longest reply has the slots of a large cluster
	maxDepth    = 8       // the largest depth of nested arrays
)

// boundedConn is the connection from which go-redis reads. go-redis allocates as much memory as a server announces, and panics if that is too much.
// So boundedConn passes on only complete values, and no more bytes than a greeting may have.
type boundedConn struct {
	net.Conn
	in    *bufio.Reader
	room  int64 // how many bytes may still come
	value []byte
	rest  []byte // the rest of value that go-redis hasn't read yet

	refused string // the text of the last value, if the value is an error
}

// bounded returns a connection for go-redis, which reads from in.
func bounded(raw net.Conn, in *bufio.Reader) net.Conn {
	return &boundedConn{Conn: raw, in: in, room: maxGreeting}
}

// lastWordsTime is how long Write waits for the server's last words on a connection that the server has closed.
const lastWordsTime = 100 * time.Millisecond

// Write fails with the server's reason if the server has closed the connection while this process was still writing. The server has too many
// connections, is in protected mode, or refuses our certificate, which it reports only after the handshake.
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

// reason returns the error of a closed connection. If the server has refused the last command, the error is the server's text. go-redis would ignore
// that text: it takes a refusal of its first command as the refusal of an old server, and goes on.
func (c *boundedConn) reason(err error) error {
	if c.refused == "" || !isClosed(err) {
		return err
	}
	text, _, _ := strings.Cut(c.refused, ". ") // the text of a server in protected mode has twelve sentences
	return lastWords(text)
}

// receive reads one value. depth is the number of arrays around it.
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
