package redis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// serverTime reads the reply to TIME, in microseconds since 1970; 0 if it is another.
func serverTime(fields []any) int64 {
	if len(fields) != 2 {
		return 0
	}
	seconds, errS := strconv.ParseInt(fmt.Sprint(fields[0]), 10, 64)
	micros, errM := strconv.ParseInt(fmt.Sprint(fields[1]), 10, 64)
	if errS != nil || errM != nil {
		return 0
	}
	return seconds*1e6 + micros
}

// reply reads what the server answered to a command.
func (v *value) reply(cmd *protocol.Command) protocol.Reply {
	number := func(i int) int64 { return v.fields[i].number }
	shape := func(kinds string) bool {
		if v.kind != '*' || len(v.fields) != len(kinds) {
			return false
		}
		for i := range kinds {
			if v.fields[i].kind != kinds[i] {
				return false
			}
		}
		return true
	}
	var reply protocol.Reply
	switch op := cmd.Op; {
	case v.kind == '-':
		return protocol.Reply{Err: classify(serverError(v.text))}
	case op == protocol.OpPing && shape("$$"):
		return protocol.Reply{Time: serverTime([]any{v.fields[0].text, v.fields[1].text})}
	case op == protocol.OpAcquire && v.kind == ':':
		reply = protocol.Reply{Status: protocol.StatusGranted, Fence: cmd.Fence, Time: v.number, Alone: true}
	case op == protocol.OpAcquire && shape(":::"):
		reply = protocol.Reply{Status: protocol.StatusGranted, Fence: number(0), Time: number(1), Former: releaseStatus(number(2))}
	case op == protocol.OpAcquire && shape(":$::::"):
		holder, polls := strings.CutSuffix(v.fields[1].text, "+")
		reply = protocol.Reply{Status: protocol.StatusHeld, Holder: holder, Polls: polls, TTL: ms(number(0)), Time: number(2), Former: releaseStatus(number(3)), Free: uint16(number(4) + 1), Elsewhere: uint16(number(5))}
	case op == protocol.OpAcquire && shape("::::"):
		reply = protocol.Reply{Status: protocol.StatusDone, Fence: number(0), TTL: ms(number(1)), Time: number(2), Former: releaseStatus(number(3))}
	case op == protocol.OpRecall && shape(":::$"):
		reply = protocol.Reply{Status: protocol.StatusExpired, Time: number(2)}
		if fence := number(0); fence > 0 {
			reply.Status = protocol.StatusDone
			reply.Result = &protocol.Result{Data: v.fields[3].text, Keep: ms(number(1)), Fence: fence}
		}
	case op == protocol.OpStore && v.kind == ':':
		if reply.Status = releaseStatus(v.number); reply.Status == protocol.StatusReleased {
			reply.Status = protocol.StatusDone
		}
	case op == protocol.OpBeat && shape("::::$"):
		return protocol.Reply{Time: number(0), Mark: number(1), Born: number(2), Shared: number(3) > 0, Lines: v.fields[4].text}
	case op == protocol.OpInspect && shape(":$::$:::"):
		reply = protocol.Reply{Time: number(0), Holder: v.fields[1].text, TTL: ms(number(2)), Fence: number(3), Lines: v.fields[4].text}
		if fence := number(5); fence > 0 {
			reply.Result = &protocol.Result{Size: int(number(6)), Keep: ms(number(7)), Fence: fence}
		}
		return reply
	case op == protocol.OpTrial && v.kind == ':':
		return protocol.Reply{}
	case op == protocol.OpNames && shape("$$"):
		return protocol.Reply{Lines: v.fields[0].text, Others: v.fields[1].text}
	case op == protocol.OpMemory && v.kind == '$':
		return protocol.Reply{Lines: v.text}
	case op == protocol.OpExtend && shape("::"):
		reply = protocol.Reply{Status: extendStatus(number(0)), Time: number(1)}
	case op == protocol.OpExtend && shape("::$"):
		reply = protocol.Reply{Status: extendStatus(number(0)), Time: number(1), Lines: v.fields[2].text}
	case (op == protocol.OpRelease || op == protocol.OpForce) && v.kind == ':':
		reply.Status = releaseStatus(v.number)
	}
	if reply.Status == protocol.StatusNone {
		return protocol.Reply{Err: unexpected(v)}
	}
	return reply
}

// replyFast reads what the server answered to several acquires that were sent as one.
func (v *value) replyFast(cmds []*protocol.Command) {
	var reply protocol.Reply
	switch {
	case v.kind == '-':
		reply.Err = classify(serverError(v.text))
	case v.kind != '*' || len(v.fields)%2 == 0 || slices.ContainsFunc(v.fields, func(f value) bool { return f.kind != ':' }):
		reply.Err = unexpected(v)
	default:
		reply = protocol.Reply{Status: protocol.StatusGranted, Time: v.fields[0].number, Alone: true}
	}
	for _, cmd := range cmds {
		if cmd.Reply = reply; reply.Err == nil {
			cmd.Reply.Fence = cmd.Fence
		}
	}
	for i := 1; reply.Err == nil && i < len(v.fields); i += 2 {
		place, fence := v.fields[i].number-1, v.fields[i+1].number
		if place < 0 || place >= int64(len(cmds)) {
			continue
		}
		other := &cmds[place].Reply
		if other.Fence, other.Alone = fence, false; fence == 0 {
			*other = protocol.Reply{Err: protocol.ErrUndecided, Time: reply.Time}
		}
	}
}

func unexpected(v *value) error {
	return fmt.Errorf("unexpected reply of type %q: is this a Redis server?", v.kind)
}

// ms returns a time that a server gives as milliseconds, which are negative if it is over.
func ms(n int64) time.Duration { return time.Duration(max(n, 0)) * time.Millisecond }

// classify marks the errors after which the server has certainly not taken the key: it could not be
// reached, or has refused the command.
func classify(err error) error {
	var dial *net.OpError
	var refused redis.Error
	err = explained(err)
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, protocol.ErrUnreachable), redis.IsAuthError(err):
		return protocol.Unsent(protocol.Mark(err, protocol.ErrUnreachable))
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return protocol.Mark(protocol.Mark(err, protocol.ErrRefused), protocol.ErrNotExecuted)
	case errors.As(err, &refused):
		return protocol.Mark(err, protocol.ErrRefused)
	}
	return err
}

func extendStatus(number int64) protocol.Status {
	if number == -2 {
		return protocol.StatusForced
	}
	if status := releaseStatus(number); status != protocol.StatusReleased {
		return status
	}
	return protocol.StatusGranted
}

func releaseStatus(number int64) protocol.Status {
	switch number {
	case 1:
		return protocol.StatusReleased
	case 0:
		return protocol.StatusExpired
	case -1:
		return protocol.StatusNotOwner
	}
	return protocol.StatusNone
}

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

// value is one of the protocol, as a server sends it.
type value struct {
	kind   byte // as in the protocol; '_' for null
	number int64
	text   string  // of strings and errors
	fields []value // of an array; reused by the next reading
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
func (v *value) read(r *bufio.Reader, nested bool) error {
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
	v.kind, v.number, v.text, v.fields = line[0], 0, "", v.fields[:0]
	switch v.kind {
	case '+', '-':
		v.text = string(body)
		return nil
	case ':', '$', '*':
	default:
		return fmt.Errorf("%w (a value of type %q)", protocol.ErrMalformed, v.kind)
	}
	if v.number, err = strconv.ParseInt(string(body), 10, 64); err != nil {
		return protocol.ErrMalformed
	}
	switch {
	case v.kind == ':':
		return nil
	case v.number == -1:
		v.kind = '_'
		return nil
	case v.kind == '$':
		return v.readText(r)
	case nested || v.number < 0 || v.number > maxFields:
		return protocol.ErrMalformed
	}
	for range v.number {
		v.fields = append(v.fields, value{})
		if err := v.fields[len(v.fields)-1].read(r, true); err != nil {
			return err
		}
	}
	return nil
}

func (v *value) readText(r *bufio.Reader) error {
	if v.number < 0 || v.number > maxText {
		return protocol.ErrMalformed
	}
	text := make([]byte, v.number+2)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	if text[v.number] != '\r' || text[v.number+1] != '\n' {
		return protocol.ErrMalformed
	}
	v.text = string(text[:v.number])
	return nil
}
