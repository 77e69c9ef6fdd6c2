package redis

import (
	"bytes"
	"time"
)

// Await waits until the buffer has a whole reply, which Receive then reads. If a reply is longer than the buffer, Await returns false, and the reader
// waits for it.
func (c *conn) Await() bool {
	for more := 1; ; more = c.in.Buffered() + 1 {
		if _, err := c.in.Peek(more); err != nil {
			return false
		}
		if b, _ := c.in.Peek(c.in.Buffered()); isWhole(b) {
			return true
		}
	}
}

func (c *conn) Interrupt() { _ = c.raw.SetReadDeadline(time.Unix(1, 0)) }

func (c *conn) Resume() { _ = c.raw.SetReadDeadline(time.Time{}) }

// isWhole reports whether b begins with a whole value, or with bytes that are no value. Receive then reports the error.
func isWhole(b []byte) bool {
	for values := 1; values > 0; values-- {
		end := bytes.IndexByte(b, '\n') + 1
		if end == 0 {
			return false
		}
		kind, n, _, err := parseLine(b[:end])
		b = b[end:]
		switch {
		case err != nil, kind == '*' && n > maxFields:
			return true
		case kind == '*':
			values += int(n)
		case kind == '$' && n > int64(len(b)-2):
			return false
		case kind == '$':
			b = b[n+2:]
		}
	}
	return true
}
