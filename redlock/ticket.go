package redlock

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
)

// clock returns the time on the masters' clocks, in microseconds. Fences and tickets are made from it, not
// from our own clock, so that processes whose clocks differ still agree on them, and follow it by our monotonic
// clock, so that it doesn't matter when our wall clock is set. known is false if fewer masters than a quorum have
// reported their time; then it may be no better than our wall clock.
func (l *Locker) clock() (now int64, known bool) {
	var room [8]time.Duration // enough for most; saves an allocation
	leads := room[:0]
	for _, s := range l.streams {
		if lead, known := s.Lead(); known {
			leads = append(leads, lead)
		}
	}
	if len(leads) == 0 {
		return time.Now().UnixMicro(), false
	}
	slices.Sort(leads)
	now = (time.Since(admission.ProcessStart) + leads[len(leads)/2]).Microseconds()
	return now, len(leads) >= l.quorum
}

// number gives a call its ticket, the time when it came on the masters' clocks, and returns their time now, from which
// its fence is proposed. While the masters' clocks aren't known there is no ticket (0): one by our own clock would put all
// calls of this process before, or behind, those of the others. A ticket of the future was made by clocks that have been set
// since, and would be behind all others until then: it is made anew.
func (l *Locker) number(callers ...*caller) (now int64) {
	now, known := l.clock()
	for _, c := range callers {
		if known && (c.ticket == 0 || c.ticket > now) {
			c.ticket = now - time.Since(c.began).Microseconds()
		}
	}
	return now
}
