package redis

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// serverTime returns the time in a reply to TIME, in microseconds since 1970.
func serverTime(seconds, micros string) (us int64, ok bool) {
	s, okS := protocol.ParseNumber(seconds, int64(protocol.MaxTime/time.Second)-1)
	m, okM := protocol.ParseNumber(micros, 999_999)
	return s*1e6 + m, okS && okM
}

const maxName = 4 << 10

// reply reads the server's reply to a command. It checks all numbers and texts, so that no caller must check them. After an error, the connection
// can't be used any more, because the next bytes may not belong to the next command.
func (v *value) reply(cmd *protocol.Command) (reply protocol.Reply, err error) {
	within := true // whether all fields so far are within their limits
	check := func(n, least, most int64) int64 {
		within = within && least <= n && n <= most
		return n
	}
	number := func(i int, least, most int64) int64 { return check(v.fields[i].number, least, most) }
	micros := func(i int) int64 { return number(i, 0, protocol.MaxTime.Microseconds()) }
	rest := func(i int) time.Duration { // reads milliseconds, which are negative if the time is over
		return time.Duration(max(number(i, math.MinInt64, protocol.MaxTime.Milliseconds()), 0)) * time.Millisecond
	}
	former := func(i int) protocol.Status { return releaseStatus(number(i, -1, 2)) }
	name := func(i int) string {
		check(int64(len(v.fields[i].text)), 0, maxName)
		return v.fields[i].text
	}
	lines := func(i int, most int64) string {
		check(int64(strings.Count(v.fields[i].text, "\n")), 0, most-1)
		return v.fields[i].text
	}
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
	switch op := cmd.Op; {
	case v.kind == '-':
		return protocol.Reply{Err: ErrorOf(v.text)}, nil
	case op == protocol.OpPing && shape("$$"):
		reply.Time, within = serverTime(v.fields[0].text, v.fields[1].text)
	case op == protocol.OpAcquire && v.kind == ':':
		reply = protocol.Reply{Status: protocol.StatusGranted, Fence: cmd.Fence, Time: check(v.number, 0, protocol.MaxTime.Microseconds()), Alone: true}
	case op == protocol.OpAcquire && shape(":::"):
		reply = protocol.Reply{Status: protocol.StatusGranted, Fence: micros(0), Time: micros(1), Former: former(2)}
	case op == protocol.OpAcquire && shape(":$::::"):
		reply = protocol.Reply{Status: protocol.StatusHeld, Holder: name(1), TTL: rest(0), Time: micros(2), Former: former(3),
			Offer: uint16(number(4, -1, protocol.MaxSlots-1) + 1), Elsewhere: uint16(number(5, 0, protocol.MaxSlots))}
	case op == protocol.OpAcquire && (shape("::::") || shape("::::$")):
		reply = protocol.Reply{Status: protocol.StatusDone, Fence: micros(0), TTL: rest(1), Time: micros(2), Former: former(3)}
		if len(v.fields) > 4 {
			check(int64(len(v.fields[4].text)), 0, protocol.ShortResult)
			reply.Answer = &protocol.Result{Data: v.fields[4].text, Keep: reply.TTL, Fence: reply.Fence}
		}
	case op == protocol.OpRecall && shape(":::$"):
		reply = protocol.Reply{Status: protocol.StatusExpired, Time: micros(2)}
		if fence := micros(0); fence > 0 {
			reply.Status = protocol.StatusDone
			reply.Answer = &protocol.Result{Data: v.fields[3].text, Keep: rest(1), Fence: fence}
		}
	case op == protocol.OpStore && v.kind == ':':
		if reply.Status = releaseStatus(check(v.number, -1, 1)); reply.Status == protocol.StatusReleased {
			reply.Status = protocol.StatusDone
		}
	case op == protocol.OpBeat && shape(":::$"):
		reply = protocol.Reply{Time: micros(0), Answer: &protocol.Beats{Mark: micros(1), Born: micros(2), Lines: lines(3, 2*protocol.MaxOthers)}}
	case op == protocol.OpInspect && shape(":$::$:::"):
		seen := &protocol.Inspected{Holder: name(1), TTL: rest(2), Fence: micros(3), Queue: lines(4, protocol.MaxWaiters)}
		if fence := micros(5); fence > 0 {
			seen.Result = &protocol.Result{Size: int(number(6, 0, math.MaxInt32)), Keep: rest(7), Fence: fence}
		}
		reply = protocol.Reply{Time: micros(0), Answer: seen}
	case op == protocol.OpTrial && v.kind == ':':
	case op == protocol.OpNames && shape("$$"):
		reply.Answer = &protocol.Named{Lines: lines(0, protocol.MaxProcesses), Turns: lines(1, protocol.MaxProcesses)}
	case op == protocol.OpMemory && v.kind == '$':
		memory := memoryOf(maps.Collect(infoFields(v.text)))
		reply.Answer = &memory
	case op == protocol.OpExtend && shape("::"):
		reply = protocol.Reply{Status: extendStatus(number(0, -1, 1)), Time: micros(1)}
	case op == protocol.OpExtend && shape("::$"):
		reply = protocol.Reply{Status: extendStatus(number(0, -2, -2)), Time: micros(1), Answer: &protocol.Force{By: name(2)}}
	case (op == protocol.OpRelease || op == protocol.OpForce) && v.kind == ':':
		reply.Status = releaseStatus(check(v.number, -1, 1))
	default:
		return reply, unexpected(v)
	}
	if !within {
		return protocol.Reply{}, errLimits
	}
	return reply, nil
}

// refused reports whether the server has answered several commands, which were sent as one script call, with an error. All of them get this error.
func (v *value) refused(cmds []*protocol.Command) bool {
	if v.kind != '-' {
		return false
	}
	for _, cmd := range cmds {
		cmd.Reply = protocol.Reply{Err: ErrorOf(v.text)}
	}
	return true
}

// replyTogether reads the reply to Fast extends, or to Fast releases. It has the time, or 0, and then the position of each command that is undecided.
func (v *value) replyTogether(cmds []*protocol.Command, done protocol.Status) error {
	if v.refused(cmds) {
		return nil
	}
	if v.kind != '*' || len(v.fields) == 0 || slices.ContainsFunc(v.fields, func(f value) bool { return f.kind != ':' }) {
		return unexpected(v)
	}
	now := v.fields[0].number
	if now < 0 || now > protocol.MaxTime.Microseconds() {
		return errLimits
	}
	for _, cmd := range cmds {
		cmd.Reply = protocol.Reply{Status: done, Time: now}
	}
	for _, f := range v.fields[1:] {
		if f.number < 1 || f.number > int64(len(cmds)) {
			return errLimits
		}
		cmds[f.number-1].Reply = protocol.Reply{Err: protocol.ErrUndecided, Time: now}
	}
	return nil
}

func (v *value) replyFast(cmds []*protocol.Command) error {
	if v.refused(cmds) {
		return nil
	}
	latest := protocol.MaxTime.Microseconds()
	within := func(f value, least, most int64) bool { return f.kind == ':' && least <= f.number && f.number <= most }
	if v.kind != '*' || len(v.fields) == 0 || !within(v.fields[0], 0, latest) {
		return unexpected(v)
	}
	now := v.fields[0].number
	for _, cmd := range cmds {
		cmd.Reply = protocol.Reply{Status: protocol.StatusGranted, Time: now, Fence: cmd.Fence, Alone: true}
	}
	for rest := v.fields[1:]; len(rest) > 0; {
		if len(rest) < 2 || !within(rest[0], 1, int64(len(cmds))) || !within(rest[1], -latest, latest) {
			return errLimits
		}
		other, fence := &cmds[rest[0].number-1].Reply, rest[1].number
		rest = rest[2:]
		switch {
		case fence > 0:
			other.Fence, other.Alone = fence, false
		case fence == 0:
			*other = protocol.Reply{Err: protocol.ErrUndecided, Time: now}
		case len(rest) < 2 || !within(rest[0], math.MinInt64, protocol.MaxTime.Milliseconds()) || len(rest[1].text) > protocol.ShortResult:
			return errLimits
		default:
			*other = protocol.Reply{Status: protocol.StatusDone, Fence: -fence, TTL: time.Duration(max(rest[0].number, 0)) * time.Millisecond, Time: now}
			if rest[1].kind == '$' {
				other.Answer = &protocol.Result{Data: rest[1].text, Keep: other.TTL, Fence: other.Fence}
			}
			rest = rest[2:]
		}
	}
	return nil
}

// errLimits is the error for a reply with a number or a text that the scripts never return.
var errLimits = fmt.Errorf("%w (it has a number or a text that can't be)", protocol.ErrMalformed)

func unexpected(v *value) error {
	return fmt.Errorf("%w (unexpected reply of type %q)", protocol.ErrMalformed, v.kind)
}

// ErrorOf returns the error of a command that the server has refused with this text.
func ErrorOf(text string) error { return classify(serverError(text)) }

// classify marks errors after which the server has certainly not granted the key: it wasn't reached, or it has refused the command.
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
