package redlock

import (
	"cmp"
	"iter"
	"slices"
	"time"

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

// seenGate is what was at a gate at one moment.
type seenGate struct {
	key   string
	head  *caller
	lock  *Lock   // the last one, or nil; it may have ended
	slots []*Lock // that are held, where the key may have several holders

	locks   []*Lock   // that are held
	waiting []*caller // who doesn't have the lock yet, in the order of their turns
	room    [1]*Lock  // for locks: mostly enough; saves an allocation
}

// see returns what is at the gate, as settle goes on with it. The mu of the gates is held.
func (g *gate) see() seenGate {
	seen := seenGate{key: g.key, head: g.head, lock: g.lock, waiting: slices.Clone(g.line)}
	if g.slots != nil {
		seen.slots, seen.waiting = slices.Clone(g.slots.locks), slices.Concat(g.slots.asking, g.line)
	}
	return seen
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

func settled(some []seenGate) []seenGate {
	for i := range some {
		some[i].settle()
	}
	return some
}

// settle finds out who holds the key and who waits, after mu was unlocked.
func (s *seenGate) settle() {
	switch s.locks = s.slots; {
	case s.lock != nil && s.lock.ctx.Err() == nil:
		s.locks = append(s.room[:0], s.lock)
	case s.head != nil:
		s.waiting = append([]*caller{s.head}, s.waiting...)
	}
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

// held returns the error for a caller that finds the key locked or wanted within this process.
func (g *gate) held() *HeldError {
	if g.slots != nil {
		return g.slots.held()
	}
	held := &HeldError{}
	if failed, ok := g.failure.(*HeldError); ok { // the head has met a lock of another process
		held.RetryAfter = failed.RetryAfter
	}
	if g.lock != nil {
		held.RetryAfter = max(held.RetryAfter, time.Until(g.lock.Until()))
	}
	return held
}

func (g *gates) held(c *caller) *HeldError {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.gate.held()
}
