package redlock

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// nextFor has the oldest caller in line ask for the slot of a lock that ends, in its place, if nobody of this process does: the slot is
// handed on to it. It returns nil where a command of its own must release the lock: for its result, or for the ticket that its call may
// have at masters.
func (g *gates) nextFor(k *Lock) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, slots := k.gate, k.attempt.slots
	if len(at.asking) > 0 || len(at.line) == 0 || k.result != nil || slots > 1 && k.attempt.mayHaveTicket() {
		return nil
	}
	if first := at.line[0]; first.several || first.recall || (first.slots > 1) != (slots > 1) || int(first.slots) <= k.Slot() {
		return nil
	}
	at.leave(k)
	next := g.advance(at)
	if next != nil {
		next.slot, next.trying = k.attempt.slot, true
	}
	g.settle(at)
	return next
}

// slotsOf returns how many slots a key has, if this process holds one of several; else 0.
func (g *gates) slotsOf(key string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.byKey[key]; at != nil {
		for _, k := range at.locks {
			if k.attempt.slots > 1 {
				n = max(n, int(k.attempt.slots))
			}
		}
	}
	return n
}

// slotEnded has the oldest caller in line ask after a slot has been released. Its acquire follows the release at once, so that it has its
// place on the masters before anybody who learns of the release.
func (l *Locker) slotEnded(k *Lock) {
	next := l.gates.afterSlot(k)
	if next == nil {
		return
	}
	if next.slots == 1 || next.several {
		next.turn <- nil
	} else {
		proposal := l.number(next)
		next.turn <- l.newAttempt(next, nil, time.Now(), proposal)
	}
	l.gates.settleNow(k.gate)
}

// afterSlot takes a lock from its gate, and returns the caller that is to ask next.
func (g *gates) afterSlot(k *Lock) (next *caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := k.gate
	at.leave(k)
	if next = g.advance(at); next == nil {
		g.settle(at)
	}
	return next
}

func (g *gates) settleNow(at *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settle(at)
}

// mayHaveTicket reports whether a master may have the ticket of the call.
func (a *attempt) mayHaveTicket() bool {
	c := a.lock.Load().caller
	for i, s := range a.locker.streams {
		if s.ForKey(c.key).MayHave(&c.tickets[i]) {
			return true
		}
	}
	return false
}

// withdraw takes the ticket of a call that has a slot away from the masters that have refused it: there it would keep others from theirs.
func (a *attempt) withdraw() {
	for i := range a.acquires {
		if c := &a.acquires[i]; c.Counted && c.Queue && c.Reply.Status == protocol.StatusHeld {
			a.push(c.Withdrawal(a.ticket))
		}
	}
}
