package redlock

import (
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// noteOutcome records how an attempt of the head has ended, and answers the try-locks that wait for that.
func (g *gates) noteOutcome(at *gate, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.failure = failed
	if lock != nil {
		at.lock = lock
	}
	at.answerTries()
	if lock != nil && lock.attempt.slots > 1 {
		at.locks = append(at.locks, lock)
		g.unseat(at)
		g.settle(at)
	}
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
	case g.failure != nil:
		return nil, g.failure
	case g.lock != nil && (g.head == nil || g.lock.attempt.slots == 1):
		return nil, g.held()
	}
	try := make(chan *DoneError, 1)
	g.tries = append(g.tries, try)
	return try, nil
}

// wake passes a wake-up on to the head of a key's gate. If nobody here wants the key any more, it calls
// otherwise, with mu held so that no caller can enter meanwhile.
func (g *gates) wake(key string, otherwise func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, slot := protocol.SlotOf(key)
	if at := g.byKey[line]; at != nil && at.head != nil {
		at.woken = slot + 1
		at.wake()
	} else {
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
		c.gate.openWakeUps()
		select {
		case <-c.gate.wakeUps:
		default:
		}
	}
}

func (g *gate) openWakeUps() {
	if g.wakeUps == nil {
		g.wakeUps = make(chan struct{}, 1)
	}
}

// wakeAll wakes all heads, because each of them may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		at.wake()
	}
}
