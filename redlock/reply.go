package redlock

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

func parseReply(cmd *Command, answer *redis.Cmd) Reply {
	value, err := answer.Result()
	if err != nil {
		return Reply{Err: classify(err)}
	}
	op := cmd.Op
	if op == OpPing {
		return Reply{}
	}
	fields, _ := value.([]any)
	whole, isNumber := value.(int64)
	number := func(i int) int64 {
		n, ok := fields[i].(int64)
		if !ok {
			err = errors.New("unexpected type in the answer")
		}
		return n
	}
	var reply Reply
	switch {
	case op == OpAcquire && isNumber:
		reply = Reply{Status: StatusGranted, Fence: cmd.Fence, Time: whole, Alone: true}
	case op == OpAcquire && len(fields) == 3:
		reply = Reply{Status: StatusGranted, Fence: number(0), Time: number(1), Former: releaseStatus(number(2))}
	case op == OpAcquire && len(fields) == 4:
		holder, _ := fields[1].(string)
		left := time.Duration(max(number(0), 0)) * time.Millisecond
		reply = Reply{Status: StatusHeld, Holder: holder, TTL: left, Time: number(2), Former: releaseStatus(number(3))}
	case op == OpExtend && len(fields) == 2:
		reply = Reply{Status: map[int64]Status{1: StatusGranted, 0: StatusExpired, -1: StatusNotOwner}[number(0)], Time: number(1)}
	case op == OpRelease && isNumber:
		reply.Status = releaseStatus(whole)
	}
	if reply.Status == StatusNone || err != nil {
		return Reply{Err: fmt.Errorf("unexpected answer of type %T: is this a Redis server?", value)}
	}
	return reply
}

// errUnreachable marks the failure to make a connection at all.
var errUnreachable = errors.New("unreachable")

// classify marks the errors after which the server has certainly not taken the key: it could not be
// reached, or has refused the command.
func classify(err error) error {
	var dial *net.OpError
	var refused redis.Error
	switch {
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, errNoVote), errors.Is(err, ErrRestarted), redis.IsAuthError(err):
		return unsent(marked{err, errUnreachable})
	case errors.As(err, &refused):
		return marked{err, errRefused}
	}
	return err
}

func releaseStatus(answer int64) Status {
	switch answer {
	case 1:
		return StatusReleased
	case 0:
		return StatusExpired
	case -1:
		return StatusNotOwner
	}
	return StatusNone
}
