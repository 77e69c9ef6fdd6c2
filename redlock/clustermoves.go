package redlock

import (
	"errors"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// maxMoves bounds how often a call is passed on to another node.
const maxMoves = 5

// errUnrouted is the front's answer to a call whose node isn't known yet.
var errUnrouted = errors.New("no node of the cluster has the slot of the key: see CLUSTER NODES")

// moved takes the calls out of an answered batch that the node has not executed, because another one has the
// key, and queues them for that one in the same order. Callers hold mu.
func (s *stream) moved(b *batch) (d declinedCalls) {
	c := s.cluster
	if c == nil {
		return nil
	}
	b.calls = slices.DeleteFunc(b.calls, func(call *call) bool {
		err := call.Reply.Err
		switch {
		case err == nil:
			return false
		case errors.Is(err, errUnrouted):
		case redis.IsMoved(err):
			c.movedTo(err, s)
		default:
			return false
		}
		to := c.at(call.Key)
		if call.moves++; to == s || call.moves > maxMoves {
			call.Reply.Err = protocol.Unsent(errUnrouted)
			signal(c.asked)
			return false
		}
		d.push(to, call)
		return true
	})
	return d
}

// movedTo evaluates an error "MOVED <slot> <address>". Callers hold mu.
func (c *cluster) movedTo(err error, from *stream) {
	n, addr, ok := from.master.(*redis.Master).MovedTo(err)
	if !ok {
		return
	}
	to := c.node(addr)
	if to != nil && 0 <= n && n < redis.Slots {
		c.assign(&c.slots[n], to, c.owners[to])
	}
	signal(c.asked)
}

// declinedCalls are calls that a stream has not accepted from another.
type declinedCalls []declinedCall

type declinedCall struct {
	at   *stream
	call *call
	err  error
}

// push queues a call for another stream. Callers hold mu, and call answer once they don't any more.
func (d *declinedCalls) push(to *stream, c *call) {
	c.Reply = protocol.Reply{}
	if _, err := to.accept(c); err != nil {
		*d = append(*d, declinedCall{to, c, err})
	} else {
		to.sendSoon()
	}
}

func (d declinedCalls) answer() {
	for _, c := range d {
		c.at.declined(c.call, c.err)
	}
}
