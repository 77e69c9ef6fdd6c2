package redlock

import (
	"context"
	"sync"
)

// inbox is a receiver that wakes its owner when there may be enough answers to decide something: once a
// round mostly, and not with each answer.
type inbox struct {
	ready chan struct{}

	mu    sync.Mutex
	op    Op      // whose answers it takes
	need  int     // answers until the owner is woken
	calls []*call // answered
}

func newInbox(op Op, need, room int) *inbox {
	return &inbox{ready: make(chan struct{}, 1), op: op, need: need, calls: make([]*call, 0, room)}
}

// expect makes it one for the answers to another operation.
func (in *inbox) expect(op Op, need int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.op, in.need, in.calls = op, need, in.calls[:0]
	select {
	case <-in.ready:
	default:
	}
}

func (in *inbox) receive(c *call) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.Op != in.op { // it comes late
		return
	}
	in.calls = append(in.calls, c)
	if len(in.calls) >= in.need {
		select {
		case in.ready <- struct{}{}:
		default:
		}
	}
}

// take appends the answers that have come, and has each further one wake the owner.
func (in *inbox) take(into []*call) []*call {
	in.mu.Lock()
	defer in.mu.Unlock()
	into = append(into, in.calls...)
	in.calls, in.need = in.calls[:0], 1
	return into
}

// ending is why collect returned.
type ending int

const (
	answered   ending = iota // enough, or all, are there
	timeOver                 // the masters' time is over
	callerLeft               // the caller's context has ended, or the Locker is closing
)

// collect hands answers to count, with the number still to come, until count is done.
func (a *attempt) collect(ctx context.Context, closing <-chan struct{}, answers *inbox, expected int, count func(c *call, pending int) (done bool)) ending {
	defer a.startTimer().Stop()
	var room [5]*call // for most
	for pending := expected; pending > 0; {
		over := false
		select {
		case <-answers.ready:
		case <-a.timer.C:
			over = true
		case <-ctx.Done():
			return callerLeft
		case <-closing:
			return callerLeft
		}
		for _, c := range answers.take(room[:0]) {
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
