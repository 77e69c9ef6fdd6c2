package redlock

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// firstSlot is where this process begins to look for a free slot: processes that begin at different ones seldom split votes.
func (l *Locker) firstSlot() int {
	var n uint32
	for _, c := range []byte(l.id) {
		n = 31*n + uint32(c)
	}
	return int(n % protocol.MaxSlots)
}

// chooseSlot returns the slot for which a call asks: the one that a wake-up or masters have named, or the next that this process neither
// has nor is asking for.
func (g *gates) chooseSlot(c *caller, first int) uint16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, here := int(c.slots), c.gate
	slot := int(c.hinted) - 1
	if slot < 0 || slot >= n || here.has(slot) {
		for slot = first % n; here.has(slot) || here.asksFor(slot); slot = (slot + 1) % n {
			if (slot+1)%n == first%n {
				break
			}
		}
	}
	c.slot, c.trying, c.hinted = uint16(slot), true, 0
	return c.slot
}

func (g *gate) has(slot int) bool {
	return slices.ContainsFunc(g.locks, func(k *Lock) bool { return int(k.attempt.slot) == slot })
}

func (g *gate) asksFor(slot int) bool {
	return slices.ContainsFunc(g.asking, func(c *caller) bool { return c.trying && int(c.slot) == slot })
}

// otherSlot returns 1 + the slot that most masters have named to an attempt which they refused, or 0.
func (a *attempt) otherSlot() (free uint16) {
	var votes [protocol.MaxSlots + 1]int
	for _, reply := range a.held {
		if votes[reply.Free]++; reply.Free > 0 && (free == 0 || votes[reply.Free] > votes[free]) {
			free = reply.Free
		}
	}
	return free
}

// hinted reports whether a call should ask at once for a slot that masters have named. It does so at most as often as there are slots.
func (g *gates) hinted(c *caller, free uint16) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if free == 0 || c.hints >= int(c.slots) {
		c.hints = 0
		return false
	}
	c.hints++
	c.hinted = free
	return true
}

// stay has the next attempt of a call ask for the slot for which the last one has, unless a wake-up has named another.
func (g *gates) stay(c *caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.hinted == 0 {
		c.hinted = c.slot + 1
	}
}

// otherSlots is how many may hold a key by a call that was met in line.
type otherSlots struct {
	n  int
	at time.Time
}

// disagreements returns this if it was met a short while ago.
func (o *otherSlots) disagreements() []Disagreement {
	if o == nil || time.Since(o.at) > time.Minute {
		return nil
	}
	return []Disagreement{{Concurrency: o.n}}
}

// tellDifference notes that calls differ on how many may hold a key, where an attempt has met another one in line. The log says so once.
func (t *contender) tellDifference(a *attempt, c *caller) {
	for _, reply := range a.held {
		if n := reply.Elsewhere; n > 0 && n != a.slots {
			if t.locker.differs.Swap(&otherSlots{int(n), time.Now()}) == nil {
				t.locker.logger.Warn("calls differ on how many may hold a key at the same time: the largest number holds, so give all rules and processes the same",
					"here", a.slots, "elsewhere", n, "key_hash", KeyHash(protocol.KeyOf(t.locker.prefix, c.key)), "rule", c.label)
			}
		}
	}
}
