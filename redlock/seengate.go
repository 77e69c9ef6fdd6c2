package redlock

import (
	"cmp"
	"iter"
	"slices"
)

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
