package redis

import (
	"bytes"
	"strconv"
	"time"
)

// Await waits for a whole reply: Receive takes it from the buffer. A reply that is longer than that is left to Wait.
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

// Interrupt ends Await.
func (c *conn) Interrupt() { _ = c.raw.SetReadDeadline(time.Unix(1, 0)) }

// Resume lets reads wait again.
func (c *conn) Resume() { _ = c.raw.SetReadDeadline(time.Time{}) }

// isWhole reports whether b begins with all of a value.
func isWhole(b []byte) bool {
	for values := 1; values > 0; values-- {
		line, rest, found := bytes.Cut(b, []byte("\r\n"))
		if !found || len(line) == 0 {
			return false
		}
		n, _ := strconv.Atoi(string(line[1:]))
		switch {
		case line[0] == '*' && n > 0:
			values += n
		case line[0] == '$' && n >= 0:
			if len(rest) < n+2 {
				return false
			}
			rest = rest[n+2:]
		}
		b = rest
	}
	return true
}
