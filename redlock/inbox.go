package redlock

import (
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// inbox collects the answers to one round of commands. It signals its owner when there may be enough of
// them to decide, rather than on every answer: mostly the owner wakes once a round.
type inbox struct {
	ready chan struct{}

	mu      sync.Mutex
	op      protocol.Op     // answers to other operations come late and are dropped
	need    int             // answers before the owner is signalled
	answers []*link.Command // the answers that the owner hasn't taken yet
}

func newInbox(op protocol.Op, need, room int) *inbox {
	return &inbox{ready: make(chan struct{}, 1), op: op, need: need, answers: make([]*link.Command, 0, room)}
}

// expect discards what has come and waits for the answers to another operation.
func (in *inbox) expect(op protocol.Op, need int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.op, in.need, in.answers = op, need, in.answers[:0]
	select {
	case <-in.ready:
	default:
	}
}

func (in *inbox) Receive(c *link.Command) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.Op != in.op { // a late answer of an earlier round
		return
	}
	in.answers = append(in.answers, c)
	if len(in.answers) >= in.need {
		select {
		case in.ready <- struct{}{}:
		default:
		}
	}
}

// take appends the answers that have come to into. From now on each further answer signals the owner.
func (in *inbox) take(into []*link.Command) []*link.Command {
	in.mu.Lock()
	defer in.mu.Unlock()
	into = append(into, in.answers...)
	in.answers, in.need = in.answers[:0], 1
	return into
}
