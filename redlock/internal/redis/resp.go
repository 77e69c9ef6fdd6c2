package redis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// The part of RESP2, the Redis serialization protocol (https://redis.io/docs/latest/develop/reference/protocol-spec/),
// that the commands of a lock need. go-redis writes and reads one batch after the other; a connection
// that has several under way must write and read apart.

func appendArray(b []byte, n int) []byte { return appendLength(b, '*', n) }

func appendLength(b []byte, kind byte, n int) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}

// appendBulk appends one string in parts.
func appendBulk(b []byte, parts ...string) []byte {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	b = appendLength(b, '$', n)
	for _, part := range parts {
		b = append(b, part...)
	}
	return append(b, '\r', '\n')
}

func appendNumber(b []byte, n int64) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], n, 10)
	b = appendLength(b, '$', len(text))
	b = append(b, text...)
	return append(b, '\r', '\n')
}

// answer is one value as a server sends it.
type answer struct {
	kind   byte // as in the protocol; '_' for null
	number int64
	text   string   // of strings and errors
	fields []answer // of an array; reused by the next reading
}

// serverError is the server's own refusal of a command.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError makes it one of go-redis's errors.
func (serverError) RedisError() {}

const (
	maxText   = 64<<10 + protocol.MaxResult // bytes of a string: results are the longest
	maxFields = 1 + 2*protocol.MaxBatch     // of an array
)

// read reads one value. After an error of it the connection is of no use: where the next value begins isn't known.
func (a *answer) read(r *bufio.Reader, nested bool) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			return protocol.ErrMalformed
		}
		return err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return protocol.ErrMalformed
	}
	body := line[1 : len(line)-2]
	a.kind, a.number, a.text, a.fields = line[0], 0, "", a.fields[:0]
	switch a.kind {
	case '+', '-':
		a.text = string(body)
		return nil
	case ':', '$', '*':
	default:
		return fmt.Errorf("%w (a value of type %q)", protocol.ErrMalformed, a.kind)
	}
	if a.number, err = strconv.ParseInt(string(body), 10, 64); err != nil {
		return protocol.ErrMalformed
	}
	switch {
	case a.kind == ':':
		return nil
	case a.number == -1:
		a.kind = '_'
		return nil
	case a.kind == '$':
		return a.readText(r)
	case nested || a.number < 0 || a.number > maxFields:
		return protocol.ErrMalformed
	}
	for range a.number {
		a.fields = append(a.fields, answer{})
		if err := a.fields[len(a.fields)-1].read(r, true); err != nil {
			return err
		}
	}
	return nil
}

func (a *answer) readText(r *bufio.Reader) error {
	if a.number < 0 || a.number > maxText {
		return protocol.ErrMalformed
	}
	text := make([]byte, a.number+2)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if text[a.number] != '\r' || text[a.number+1] != '\n' {
		return protocol.ErrMalformed
	}
	a.text = string(text[:a.number])
	return nil
}
