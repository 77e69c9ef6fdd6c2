package redis

// This file has all of this project's code for RESP2, the Redis serialization protocol
// (https://redis.io/docs/latest/develop/reference/protocol-spec/), as far as the commands of a lock need it. docs/DESIGN.md says why no library does
// this.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

func appendArray(b []byte, n int) []byte { return appendLength(b, '*', n) }

func appendLength(b []byte, kind byte, n int) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}

// appendBulk appends one string, which is the concatenation of the parts.
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

type value struct {
	kind   byte // the first byte of the value in the protocol; '_' for null
	number int64
	text   string  // for strings and errors
	fields []value // for an array; reused by the next read
}

// serverError is the text with which the server has refused a command.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError makes serverError implement go-redis's redis.Error.
func (serverError) RedisError() {}

const (
	maxText   = 64<<10 + protocol.MaxResult // the largest number of bytes of a string; results are the longest strings
	maxTexts  = 2 * maxText                 // the largest number of bytes of all strings of an array
	maxFields = 1 + 4*protocol.MaxBatch     // the largest number of fields of an array
)

// parseLine parses a line, which is a value or the first line of a value. For a string or an array, n is its length.
func parseLine(line []byte) (kind byte, n int64, text []byte, err error) {
	if len(line) < 3 || line[len(line)-2] != '\r' || line[len(line)-1] != '\n' {
		return 0, 0, nil, protocol.ErrMalformed
	}
	kind, text = line[0], line[1:len(line)-2]
	switch kind {
	case '+', '-':
		return kind, 0, text, nil
	case ':', '$', '*':
	default:
		return 0, 0, nil, fmt.Errorf("%w (a value of type %q)", protocol.ErrMalformed, kind)
	}
	n, err = strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil || kind != ':' && n < -1:
		return 0, 0, nil, protocol.ErrMalformed
	case kind != ':' && n == -1:
		kind = '_'
	}
	return kind, n, nil, nil
}

// readLine reads a line with its end. The line is valid until the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, protocol.ErrMalformed
	}
	return line, err
}

// read reads one value. After an error the connection can't be used any more, because nobody knows where the next value begins.
func (v *value) read(r *bufio.Reader) error {
	err := v.readOne(r, maxText)
	v.fields = v.fields[:0]
	if err != nil || v.kind != '*' {
		return err
	}
	if v.number > maxFields {
		return protocol.ErrMalformed
	}
	room := int64(maxTexts)
	for range v.number {
		v.fields = append(v.fields, value{})
		f := &v.fields[len(v.fields)-1]
		if err := f.readOne(r, min(room, maxText)); err != nil {
			return err
		}
		if f.kind == '*' {
			return protocol.ErrMalformed
		}
		room -= int64(len(f.text))
	}
	return nil
}

// readOne reads one value, without the fields of an array. most is the largest number of bytes of a string.
func (v *value) readOne(r *bufio.Reader, most int64) error {
	line, err := readLine(r)
	if err != nil {
		return err
	}
	kind, n, text, err := parseLine(line)
	if err != nil {
		return err
	}
	v.kind, v.number, v.text = kind, n, string(text)
	if kind != '$' {
		return nil
	}
	if n > most {
		return protocol.ErrMalformed
	}
	data := make([]byte, n+2)
	if _, err := io.ReadFull(r, data); err != nil {
		return err
	}
	if data[n] != '\r' || data[n+1] != '\n' {
		return protocol.ErrMalformed
	}
	v.text = string(data[:n])
	return nil
}
