package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// round is the wait of one goroutine for what masters answer to a command: of an attempt for its acquires, of an inspection, of who
// stores or fetches a result. Several can follow each other, as those of an attempt do.
type round struct {
	locker  *Locker
	replies *inbox
	timer   *time.Timer // runs over; nil before the first
	over    func()      // the time may be over: rings the replies, at least; on a goroutine of its own, which nothing else can hold up
}

// ending is how a collect ended.
type ending int

const (
	answered   ending = iota // count was done, or all have answered
	timeOver                 // the deadline has passed
	callerLeft               // the caller's context has ended, or the Locker is closing
)

// collect passes each reply to count, with the number of those still missing, until count reports done or
// all expected replies are in. Replies that are there when the deadline passes still count.
func (r *round) collect(ctx context.Context, closing <-chan struct{}, deadline time.Time, expected int, count func(c *link.Command, pending int) (done bool)) ending {
	defer r.stopTimer()
	var room [5]*link.Command // enough for most; saves an allocation
	timed := false            // a caller that has read its own replies needs no timer
	for pending := expected; pending > 0; {
		over := false
		if !timed && len(r.replies.ready) == 0 {
			timed = true
			r.startTimer(deadline)
		}
		select {
		case <-r.replies.ready:
			over = !time.Now().Before(deadline)
		case <-ctx.Done():
			return callerLeft
		case <-closing:
			return callerLeft
		}
		for _, c := range r.replies.drain(room[:0]) {
			pending--
			if count(c, pending) {
				return answered
			}
		}
		if over {
			return timeOver
		}
	}
	return answered
}

// startTimer has the timer run out at the deadline.
func (r *round) startTimer(deadline time.Time) {
	if rest := time.Until(deadline); r.timer == nil {
		r.timer = time.AfterFunc(rest, r.over)
	} else {
		r.timer.Reset(rest)
	}
}

func (r *round) stopTimer() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// inbox collects the replies to one round of commands. It signals its owner when there may be enough of
// them to decide, rather than on every reply: mostly the owner wakes once a round.
type inbox struct {
	ready chan struct{}

	mu      sync.Mutex
	op      protocol.Op     // replies to other operations come late and are dropped
	need    int             // replies before the owner is signaled
	replies []*link.Command // the replies that the owner hasn't taken yet
}

func newInbox(op protocol.Op, need, room int) *inbox {
	return &inbox{ready: make(chan struct{}, 1), op: op, need: need, replies: make([]*link.Command, 0, room)}
}

// expect discards what has come and waits for the replies to another operation.
func (in *inbox) expect(op protocol.Op, need int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.op, in.need, in.replies = op, need, in.replies[:0]
	select {
	case <-in.ready:
	default:
	}
}

func (in *inbox) Receive(c *link.Command) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.Op != in.op { // a late reply of an earlier round
		return
	}
	in.replies = append(in.replies, c)
	if len(in.replies) >= in.need {
		in.ring()
	}
}

// drain appends the replies that have come to into. From now on each further reply signals the owner.
func (in *inbox) drain(into []*link.Command) []*link.Command {
	in.mu.Lock()
	defer in.mu.Unlock()
	into = append(into, in.replies...)
	in.replies, in.need = in.replies[:0], 1
	return into
}

// ring wakes the owner.
func (in *inbox) ring() { link.Signal(in.ready) }
