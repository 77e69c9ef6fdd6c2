package memory

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Slots has, for each slot of a key, the time until which the slot is taken, or offered to a call, in microseconds. It is only a hint for the search
// for a free slot: the leases decide.
type Slots map[int]int64

type Offer struct {
	Slot  int
	Until int64 // in microseconds, by the master's clock
}

// note notes the time until which a slot is taken, if the key's slots are watched.
func (s Slots) note(slot int, until time.Time) {
	if _, watched := s[slot]; watched {
		s[slot] = until.UnixMicro()
	}
}

// first returns the slot that will be free first, and the time until which it is taken. It skips that many slots of the order as behind says. The
// slot is -1 if none is left.
func (s Slots) first(behind int) (slot int, taken int64) {
	all := make([]int, 0, len(s))
	for slot := range s {
		all = append(all, slot)
	}
	slices.SortFunc(all, func(a, b int) int {
		switch {
		case s[a] < s[b], s[a] == s[b] && strconv.Itoa(a) < strconv.Itoa(b): // Redis orders equal scores in the same way
			return -1
		}
		return 1
	})
	if behind >= len(all) {
		return -1, 0
	}
	return all[behind], s[all[behind]]
}

// slots returns the slots of the command's key, or nil if they aren't watched.
func (m *Master) slots(cmd *protocol.Command, now time.Time) Slots {
	slots, _, _ := m.Slots.Get(lineOf(cmd), now)
	return slots
}

func (m *Master) offered(cmd *protocol.Command, now time.Time) (slot int, has bool) {
	offer, _, known := m.Offers.Get(lineOf(cmd)+cmd.Process, now)
	if !known || offer.Until <= now.UnixMicro() || m.slots(cmd, now)[offer.Slot] != offer.Until {
		return 0, false
	}
	return offer.Slot, true
}

// forgo removes the command's call from the queue, and takes back its offer.
func (m *Master) forgo(cmd *protocol.Command, now time.Time) {
	if slot, has := m.offered(cmd, now); has {
		m.slots(cmd, now).note(slot, time.UnixMicro(0))
	}
	if q, _, waiters := m.Queues.Get(lineOf(cmd), now); waiters {
		q.leave(cmd.Process, math.MaxInt64)
	}
	m.Offers.Delete(lineOf(cmd) + cmd.Process)
}

// watch makes the master keep Slots for the command's key for WatchTime, so that it can offer free slots.
func (m *Master) watch(cmd *protocol.Command, now time.Time) {
	line := lineOf(cmd)
	slots, _, known := m.Slots.Get(line, now)
	if !known {
		slots = make(Slots)
	}
	if _, all := slots[int(cmd.Slots)-1]; !all {
		m.Plain.Delete(line) // a release must change Slots, so it must not be a plain one
		for slot := range int(cmd.Slots) {
			if _, watched := slots[slot]; !watched {
				slots[slot] = 0
				if _, ends, held := m.Leases.Get(protocol.SlotKey(line, slot), now); held {
					slots[slot] = ends.UnixMicro()
				}
			}
		}
	}
	m.Slots.Set(line, slots, now, protocol.WatchTime)
}

// offer offers each free slot to the first call in the queue that may have it and, if slots are left, to the call asks. It wakes these calls, except
// for asks.
func (m *Master) offer(cmd *protocol.Command, asks string, now time.Time) {
	line, slots, unanswered := lineOf(cmd), m.slots(cmd, now), asks
	q, _, waiters := m.Queues.Get(line, now)
	if !waiters {
		q = &Queue{}
	}
	until := now.Add(protocol.OfferTime)
	for behind := 0; unanswered != "" || len(q.Places) > 0; {
		slot, taken := slots.first(behind)
		if slot < 0 || taken > now.UnixMicro() {
			return
		}
		key := protocol.SlotKey(line, slot)
		first := q.Oldest("", slot, now)
		if first == nil && slot < int(cmd.Slots) && unanswered != "" {
			first = &Place{Process: unanswered}
		}
		if _, ends, held := m.Leases.Get(key, now); held {
			slots.note(slot, ends)
			m.Plain.Delete(key)
			continue
		}
		if first == nil {
			behind++
			continue
		}
		slots.note(slot, until)
		p := *first
		if p.isCall() { // a process that allows one holder keeps its place until it is granted the slot
			q.leave(p.Process, math.MaxInt64)
		}
		m.Offers.Set(line+p.Process, Offer{slot, until.UnixMicro()}, now, protocol.OfferTime)
		if p.Process == asks {
			unanswered = ""
		} else if !m.wake(key, q, p) {
			m.Offers.Delete(line + p.Process)
			slots.note(slot, time.UnixMicro(0))
		}
	}
}

// wakeFirst wakes the first process in the queue for the only slot, which is free. It wakes no call for a key with several holders, which gets an
// offer instead, and not the command's own process.
func (m *Master) wakeFirst(cmd *protocol.Command, now time.Time) {
	q, _, waiters := m.Queues.Get(cmd.Key, now)
	for waiters {
		first := q.Oldest("", 0, now)
		if first == nil || first.Process == cmd.Process || first.isCall() || m.wake(cmd.Key, q, *first) {
			return
		}
	}
}
