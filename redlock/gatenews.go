package redlock

import (
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// noteOutcome records how an attempt of a call at the head has ended, and answers the try-locks that wait for that.
func (g *gates) noteOutcome(c *caller, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := c.gate
	if c.asks != nil {
		c.asks.failure, c.asks.asking = failed, false
		if at.answerTries(); lock != nil {
			at.slots.locks = append(at.slots.locks, lock)
			g.unseat(c)
			g.settle(at)
		}
		return
	}
	at.failure = failed
	if lock != nil {
		at.lock = lock
	}
	at.answerTries()
}

// met passes the result that the head has met on to the calls that stand in line for it, and to the try-locks that wait for its
// attempt: it was remembered while they waited. So thousands of calls cost the masters what one does.
func (g *gates) met(at *gate, done *DoneError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, try := range at.tries {
		try <- done
	}
	at.tries = nil
	at.line = slices.DeleteFunc(at.line, func(c *caller) bool {
		if !c.recall {
			return false
		}
		c.done = done
		c.turn <- nil
		return true
	})
}

func (g *gate) answerTries() {
	for _, try := range g.tries {
		close(try)
	}
	g.tries = nil
}

func (g *gate) refuseTry() (later <-chan *DoneError, err error) {
	switch {
	case g.slots.busy() > 0:
		if err := g.slots.refuseTry(); err != nil {
			return nil, err
		}
	case g.failure != nil:
		return nil, g.failure
	case g.lock != nil:
		return nil, g.held()
	}
	try := make(chan *DoneError, 1)
	g.tries = append(g.tries, try)
	return try, nil
}

// wake passes a wake-up on to the head of a key's gate, or to the call that it is for. If nobody here wants the key any more, it calls
// otherwise, with mu held so that no caller can enter meanwhile.
func (g *gates) wake(key string, call uint64, otherwise func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, slot := protocol.SlotOf(key)
	at := g.byKey[line]
	switch {
	case call > 0 && at != nil && at.slots.wake(call, slot):
	case call == 0 && at != nil && at.head != nil:
		at.wake()
	default:
		otherwise()
	}
}

func (g *gate) wake() {
	select {
	case g.wakeUps <- struct{}{}:
	default:
	}
}

// drainWakeUps discards the wake-ups that have come so far to the gates of which a call is the head.
func (g *gates) drainWakeUps(callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		if !c.heads {
			continue
		}
		select {
		case <-c.openWakeUps():
		default:
		}
	}
}

func (g *gate) openWakeUps() {
	if g.wakeUps == nil {
		g.wakeUps = make(chan struct{}, 1)
	}
}

// openWakeUps returns what signals the wake-ups of a call at the head.
func (c *caller) openWakeUps() <-chan struct{} {
	if c.asks != nil {
		return c.asks.wakeUps
	}
	c.gate.openWakeUps()
	return c.gate.wakeUps
}

// wakeUps is openWakeUps for a call that has opened them.
func (c *caller) wakeUps() <-chan struct{} {
	if c.asks != nil {
		return c.asks.wakeUps
	}
	return c.gate.wakeUps
}

// wakeAll wakes all heads, because each of them may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		at.wake()
		at.slots.wakeAll()
	}
}
