package redlock

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// maxAsking bounds how many calls of one process ask for slots of one key at a time: so many places it has in the masters' line.
const maxAsking = 16

// slots is what is at a gate whose key may have several holders. A process asks for as many slots at once as it may have and doesn't,
// each for the oldest call in line. So each of them has its own place in the masters' line. nil has nothing.
type slots struct {
	locks  []*Lock
	asking []*caller // in the order in which they came
}

// asks is what a call has that asks for a slot. The mu of the gates guards it.
type asks struct {
	slot    uint16 // asked for last
	asking  bool   // an attempt for it is under way
	hinted  uint16 // 1 + the slot that a wake-up, or masters, have named as free; 0 for none
	hints   int    // how often masters have
	failure error  // of the last attempt
	wakeUps chan struct{}
}

func (s *slots) all() []*Lock {
	if s == nil {
		return nil
	}
	return slices.Clip(s.locks)
}

// busy returns how many slots this process has, or asks for.
func (s *slots) busy() int {
	if s == nil {
		return 0
	}
	return len(s.locks) + len(s.asking)
}

// fullFor reports whether this process has, or asks for, as many slots as a caller allows, or one that asks: it would meet another one.
func (s *slots) fullFor(c *caller) bool {
	busy := s.busy()
	if busy == 0 {
		return false
	}
	return busy >= int(c.slots) || len(s.asking) >= maxAsking ||
		slices.ContainsFunc(s.asking, func(asks *caller) bool { return busy >= int(asks.slots) })
}

// full reports whether a caller can't be the head now, or ask for a slot.
func (g *gate) full(c *caller) bool {
	switch {
	case g.head != nil:
		return true
	case g.slots.busy() == 0:
		return false
	}
	for _, older := range g.line {
		if older.order >= c.order {
			break
		}
		if !older.several || g.slots.fullFor(older) { // a call for several keys may wait at another one of them, and keeps nobody from this one
			return true
		}
	}
	return g.slots.fullFor(c)
}

// asked has a caller ask for a slot.
func (g *gate) asked(c *caller) {
	if g.slots == nil {
		g.slots = &slots{}
	}
	g.slots.asking = append(g.slots.asking, c)
}

func (s *slots) drop(c *caller) {
	s.asking = slices.DeleteFunc(s.asking, func(other *caller) bool { return other == c })
}

// held is the error of a call that finds all slots taken, or wanted, within this process.
func (s *slots) held() *HeldError {
	held := &HeldError{}
	for _, c := range s.asking {
		held.Slots = max(held.Slots, int(c.slots))
		if failed, ok := c.asks.failure.(*HeldError); ok {
			held.RetryAfter = max(held.RetryAfter, failed.RetryAfter)
		}
	}
	first := untilDone
	for _, k := range s.locks {
		held.Slots = max(held.Slots, int(k.attempt.slots))
		first = min(first, time.Until(k.Until()))
	}
	if len(s.locks) > 0 {
		held.RetryAfter = max(0, first)
	}
	return held
}

// refuseTry returns the error of a try-lock that can't ask, or nil if it should wait until an attempt is over: all that ask do so
// for the first time, and one may be refused because of another.
func (s *slots) refuseTry() error {
	for _, c := range s.asking {
		if c.asks.failure != nil {
			return c.asks.failure
		}
	}
	if len(s.asking) == 0 {
		return s.held()
	}
	return nil
}

// wake passes the wake-up for a slot on to a call, and reports whether that waits.
func (s *slots) wake(call uint64, slot int) bool {
	if s == nil {
		return false
	}
	for _, c := range s.asking {
		if c.order == call {
			c.asks.hinted = uint16(slot + 1)
			c.asks.wake()
			return true
		}
	}
	return false
}

func (s *slots) wakeAll() {
	if s == nil {
		return
	}
	for _, c := range s.asking {
		c.asks.wake()
	}
}

func (a *asks) wake() {
	select {
	case a.wakeUps <- struct{}{}:
	default:
	}
}

// nextFor has the oldest caller in line ask for the slot of a lock that ends, in its place, if nobody of this process does: the slot is
// handed on to it. It returns nil where masters may have the ticket of the lock's call, which a release takes away.
func (g *gates) nextFor(k *Lock) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := k.gate
	if at.head != nil || len(at.slots.asking) > 0 || len(at.line) == 0 || k.attempt.mayHaveTicket() {
		return nil
	}
	if first := at.line[0]; first.several || first.asks == nil || int(first.slots) <= k.Slot() {
		return nil
	}
	at.slots.leave(k)
	next := g.advance(at)
	if next != nil {
		next.asks.slot, next.asks.asking = k.attempt.slot, true
	}
	g.settle(at)
	return next
}

// slotsOf returns how many slots a key has, if this process holds one of several; else 0.
func (g *gates) slotsOf(key string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.byKey[key]; at != nil {
		for _, k := range at.slots.all() {
			n = max(n, int(k.attempt.slots))
		}
	}
	return n
}

func (s *slots) leave(k *Lock) {
	s.locks = slices.DeleteFunc(s.locks, func(other *Lock) bool { return other == k })
}

// slotEnded has the oldest caller in line ask after a slot has been released. Its acquire follows the release at once, so that it has its
// place on the masters before anybody who learns of the release.
func (l *Locker) slotEnded(k *Lock) {
	next := l.gates.afterSlot(k)
	if next == nil {
		return
	}
	if next.asks == nil || next.several {
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
	at.slots.leave(k)
	if at.head == nil {
		next = g.advance(at)
	}
	if next == nil {
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
