package redlock

import (
	"slices"
	"time"
)

// clock returns the time on the masters' clocks, in microseconds. Fences and tickets are made from it, not
// from our own clock, so that processes whose clocks differ still agree on them. known is false if fewer
// masters than a quorum have reported their time; then it may be no better than our own clock.
func (l *Locker) clock() (now int64, known bool) {
	offsets := make([]int64, 0, len(l.streams))
	for _, s := range l.streams {
		if offset, known := s.offset(); known {
			offsets = append(offsets, offset)
		}
	}
	now = time.Now().UnixMicro()
	if len(offsets) == 0 {
		return now, false
	}
	slices.Sort(offsets)
	return now + offsets[len(offsets)/2], len(offsets) >= l.quorum
}

// arrival returns when a call came, on the masters' clocks in microseconds, or 0 if they aren't known.
func (l *Locker) arrival(began time.Time) int64 {
	now, known := l.clock()
	if !known {
		return 0
	}
	return now - time.Since(began).Microseconds()
}

// number gives a caller that has become the head its ticket: the time at which it came, but above the
// tickets of the heads before it. While the masters' clocks aren't known there is none (0): a ticket by our
// own clock would put all calls of this process before, or behind, those of the others. A LockAll call has
// the same ticket for all of its keys, so that whoever is first for one key is first for all. The mu of
// the gates is held.
func (c *caller) number(arrival int64) {
	c.ticket = arrival
	if !c.several && arrival > 0 {
		c.ticket = max(arrival, c.gate.newest+1)
	}
	c.gate.newest = max(c.gate.newest, c.ticket)
}

// number gives the callers of one call the tickets that couldn't be made when they became heads.
func (l *Locker) number(callers []*caller) {
	if callers[0].ticket > 0 {
		return
	}
	arrival := l.arrival(callers[0].began)
	l.gates.mu.Lock()
	defer l.gates.mu.Unlock()
	for _, c := range callers {
		c.number(arrival)
	}
}
