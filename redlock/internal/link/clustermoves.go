package link

import (
	"errors"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// maxMoves bounds how often a command is passed on to another node.
const maxMoves = 5

// errUnrouted is the front's answer to a command whose node isn't known yet.
var errUnrouted = errors.New("no node of the cluster has the slot of the key: see CLUSTER NODES")

// moved takes the commands out of an answered batch that the node has not executed, because another one has the
// key, and queues them for that one in the same order. Callers hold mu.
func (s *Stream) moved(b *batch) (d declined) {
	c := s.cluster
	if c == nil {
		return nil
	}
	b.commands = slices.DeleteFunc(b.commands, func(cmd *Command) bool {
		err := cmd.Reply.Err
		switch {
		case err == nil:
			return false
		case errors.Is(err, errUnrouted):
		case redis.IsMoved(err):
			c.movedTo(err, s)
		default:
			return false
		}
		to := c.at(cmd.Key)
		if cmd.moves++; to == s || cmd.moves > maxMoves {
			cmd.Reply.Err = protocol.Unsent(errUnrouted)
			Signal(c.asked)
			return false
		}
		d.push(to, cmd)
		return true
	})
	return d
}

// movedTo evaluates an error "MOVED <slot> <address>". Callers hold mu.
func (c *cluster) movedTo(err error, from *Stream) {
	n, addr, ok := from.master.(*redis.Master).MovedTo(err)
	if !ok {
		return
	}
	to := c.node(addr)
	if to != nil && 0 <= n && n < redis.Slots {
		c.assign(&c.slots[n], to, c.owners[to])
	}
	Signal(c.asked)
}

// declined are commands that a stream has not accepted from another.
type declined []declinedCommand

type declinedCommand struct {
	at  *Stream
	cmd *Command
	err error
}

// push queues a command for another stream. Callers hold mu, and call answer once they don't any more.
func (d *declined) push(to *Stream, c *Command) {
	c.Reply = protocol.Reply{}
	if _, err := to.accept(c); err != nil {
		*d = append(*d, declinedCommand{to, c, err})
	} else {
		to.SendSoon()
	}
}

func (d declined) answer() {
	for _, c := range d {
		c.at.declined(c.cmd, c.err)
	}
}
