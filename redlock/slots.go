package redlock

import (
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// full reports whether a caller can't be the head now: another is, or this process has as many slots of the key as the caller allows.
func (g *gate) full(c *caller) bool {
	return g.head != nil || len(g.locks) > 0 && (len(g.locks) >= c.slots || len(g.line) > 0 && g.line[0] != c && (c.order == 0 || g.line[0].order < c.order))
}

// firstSlot is where this process begins to look for a free slot: processes that begin at different ones seldom split votes.
func (l *Locker) firstSlot() (n int) {
	for _, c := range []byte(l.id) {
		n = 31*n + int(c)
	}
	return n
}

// chooseSlot chooses the slot for which a head asks: the one that a wake-up or masters have named, or the next that this process
// doesn't have.
func (g *gates) chooseSlot(c *caller, first int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := c.gate
	taken := func(slot int) bool {
		return slot >= c.slots || slices.ContainsFunc(at.locks, func(k *Lock) bool { return k.attempt.slot == slot })
	}
	named := []int{c.hinted - 1, at.woken - 1}
	c.hinted, at.woken = 0, 0
	for _, slot := range named {
		if slot >= 0 && !taken(slot) {
			c.slot = slot
			return
		}
	}
	for i := range c.slots {
		if slot := (first + i) % c.slots; !taken(slot) {
			c.slot = slot
			return
		}
	}
}

// nextFor makes the oldest caller in line the head if it may have the slot of a lock that ends, and nobody else is the head; the slot
// is handed on to it. The lock leaves the gate.
func (g *gates) nextFor(k *Lock) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := k.gate
	at.removeLock(k)
	if at.head != nil || len(at.line) == 0 || at.line[0].slots <= k.attempt.slot {
		return nil
	}
	return g.advance(at)
}

func (g *gate) removeLock(k *Lock) {
	if i := slices.Index(g.locks, k); i >= 0 {
		g.locks = slices.Delete(g.locks, i, i+1)
	}
}

// slotEnded has the gate know that a slot is being released: its head, whom the masters don't wake for what this process frees itself,
// may ask for it.
func (g *gates) slotEnded(k *Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := k.gate
	at.removeLock(k)
	if at.head != nil {
		at.woken = k.attempt.slot + 1
		at.wake()
		return
	}
	g.settle(at)
}

// otherSlot returns the slot for which to ask next, after an attempt that found its slot taken: the one that most masters have named,
// if a quorum may grant it. It is asked for at once, at most as often as there are slots.
func (a *attempt) otherSlot(c *caller) (slot int, ok bool) {
	if a.slots <= 1 || c.hints >= a.slots {
		return 0, false
	}
	var votes [protocol.MaxSlots + 1]int
	for _, reply := range a.held {
		votes[reply.Free]++
	}
	votes[0] = 0
	for free, n := range votes {
		if n > votes[slot] {
			slot = free
		}
	}
	c.hints++
	return slot - 1, slot > 0
}
