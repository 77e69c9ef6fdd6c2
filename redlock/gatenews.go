package redlock

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// noteOutcome records how an attempt of a call has ended, and answers the try-locks that wait for that.
func (g *gates) noteOutcome(c *caller, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := c.gate
	if c.trying, c.failure = false, failed; c.several {
		c.failure = nil // what it has met says nothing to others: the key may be free
	}
	if lock == nil {
		at.answerTries()
		return
	}
	at.unseat(c)
	if at.locks == nil {
		at.locks = at.roomToHold[:0]
	}
	at.locks = append(at.locks, lock)
	g.settle(at)
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

// refuseTry returns the error of a try-lock that can't ask, or what tells it when an attempt is over: all that ask do so for the first
// time, and one may be refused because of another.
func (g *gate) refuseTry() (later <-chan *DoneError, err error) {
	for _, c := range g.asking {
		if c.failure != nil {
			return nil, c.failure
		}
	}
	if len(g.asking) == 0 {
		return nil, g.held()
	}
	try := make(chan *DoneError, 1)
	g.tries = append(g.tries, try)
	return try, nil
}

// wake passes a wake-up on to the call that asks for a key with one slot, or to that which it is for. If nobody here wants the key any
// more, it calls otherwise, with mu held so that no caller can enter meanwhile.
func (g *gates) wake(key string, call uint64, otherwise func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, slot := protocol.SlotOf(key)
	at := g.byKey[line]
	if at == nil || at.busy() == 0 || !at.wake(call, slot) && call > 0 {
		otherwise()
	}
}

func (g *gate) wake(call uint64, slot int) bool {
	for _, c := range g.asking {
		switch {
		case call == 0 && c.slots == 1:
		case call > 0 && c.order == call:
			c.hinted = uint16(slot + 1)
		default:
			continue
		}
		c.wake()
		return true
	}
	return false
}

func (c *caller) wake() {
	select {
	case c.wakeUps <- struct{}{}:
	default:
	}
}

// drainWakeUps discards the wake-ups that have come so far to a call.
func (g *gates) drainWakeUps(callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		if !c.heads {
			continue
		}
		c.openWakeUps()
		select {
		case <-c.wakeUps:
		default:
		}
	}
}

func (c *caller) openWakeUps() {
	if c.wakeUps == nil {
		c.wakeUps = make(chan struct{}, 1)
	}
}

// wakeAll wakes all that ask, because each of them may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		for _, c := range at.asking {
			c.wake()
		}
	}
}

// seenGate is what was at a gate at one moment.
type seenGate struct {
	key     string
	locks   []*Lock   // that are held
	waiting []*caller // who doesn't have the lock yet, in the order of their turns
}

// see returns what is at the gate. The mu of the gates is held.
func (g *gate) see() seenGate {
	return seenGate{key: g.key, locks: slices.Clone(g.locks), waiting: slices.Concat(g.asking, g.line)}
}

// gatesAtOnce is how many gates are seen while no call can come or go.
const gatesAtOnce = 64

// seen yields what is at all gates, some at a time, which stay valid until the next. Gates that come or go meanwhile may be missing.
func (g *gates) seen() iter.Seq[[]seenGate] {
	return func(yield func([]seenGate) bool) {
		some := make([]seenGate, 0, gatesAtOnce)
		g.mu.Lock()
		for _, at := range g.byKey { // which may change between two steps
			if some = append(some, at.see()); len(some) < gatesAtOnce {
				continue
			}
			g.mu.Unlock()
			if !yield(settled(some)) {
				return
			}
			some = some[:0]
			g.mu.Lock()
		}
		g.mu.Unlock()
		yield(settled(some))
	}
}

// settled leaves out the locks that have ended, after mu was unlocked.
func settled(some []seenGate) []seenGate {
	for i := range some {
		some[i].settle()
	}
	return some
}

func (s *seenGate) settle() {
	s.locks = slices.DeleteFunc(s.locks, func(k *Lock) bool { return k.ctx.Err() != nil })
}

// appendStatuses appends what is shown of the gate: one for each lock that is held, or else one.
func (s *seenGate) appendStatuses(all []KeyStatus, key string) []KeyStatus {
	first := len(all)
	for _, k := range s.locks {
		all = append(all, KeyStatus{Key: key, Label: k.caller.label, Request: k.caller.request, Held: true, Since: k.since(), Until: k.ownUntil(), Fence: k.Fence()})
		if k.attempt.slots > 1 {
			all[len(all)-1].Slot, all[len(all)-1].Slots = int(k.attempt.slot), int(k.attempt.slots)
		}
	}
	line := s.waiting
	switch {
	case len(s.locks) > 1:
		slices.SortFunc(all[first:], func(a, b KeyStatus) int { return cmp.Compare(a.Slot, b.Slot) })
	case len(s.locks) == 0 && len(line) == 0:
		return all
	case len(s.locks) == 0:
		all = append(all, KeyStatus{Key: key, Label: line[0].label, Request: line[0].request, Since: line[0].began})
		line = line[1:]
	}
	all[first].Waiting = len(s.waiting)
	for _, c := range line {
		all[first].Line = append(all[first].Line, Call{Label: c.label, Since: c.began, Request: c.request})
	}
	return all
}

// held returns the error for a caller that finds all slots taken, or wanted, within this process.
func (g *gate) held() *HeldError {
	held, most := &HeldError{}, 0
	for _, c := range g.asking {
		most = max(most, int(c.slots))
		if failed, ok := c.failure.(*HeldError); ok { // it has met a lock of another process
			held.RetryAfter = max(held.RetryAfter, failed.RetryAfter)
		}
	}
	first := untilDone
	for _, k := range g.locks {
		most = max(most, int(k.attempt.slots))
		first = min(first, time.Until(k.Until()))
	}
	if len(g.locks) > 0 {
		held.RetryAfter = max(0, first)
	}
	if most > 1 {
		held.Slots = most
	}
	return held
}

func (g *gates) held(c *caller) *HeldError {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.gate.held()
}
