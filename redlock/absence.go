package redlock

import (
	"cmp"
	"slices"
	"time"
)

// absence is that of masters, of which too few have a vote for a key. It doesn't change.
type absence struct {
	since time.Time // when this process got to know of it
	err   *QuorumError
}

// rest returns for how long a call may still wait for the masters; a call for which none are absent as long as for any.
func (a *absence) rest(c *caller) time.Duration {
	if a == nil {
		return c.masters
	}
	return c.masters - time.Since(a.since)
}

// absent returns that of the masters of a key by what this process knows without asking them, or nil.
func (l *Locker) absent(key string) *absence {
	var since []time.Time
	var failed []*MasterError
	now := time.Now()
	for i, s := range l.streams {
		if at, why := s.At(key).Away(now); !at.IsZero() {
			since = append(since, at)
			failed = append(failed, &MasterError{l.nodeName(i, key), why})
		}
	}
	spare := len(l.streams) - l.quorum
	if len(since) <= spare {
		return nil
	}
	slices.SortFunc(since, time.Time.Compare)
	return &absence{since[spare], &QuorumError{Quorum: l.quorum, Total: len(l.streams), Masters: failed, RetryAfter: l.guardsOver(failed)}}
}

// mayAsk reports whether a call may ask for a key for which too few masters have a vote: in a while one call of the process does, and thousands
// wait for what it finds out.
func (l *Locker) mayAsk() bool {
	now, last := int64(time.Since(l.gates.began)), l.askedAbsent.Load()
	return now-last >= int64(askGap) && l.askedAbsent.CompareAndSwap(last, now)
}

// absentFor returns the absence of masters for which a call in line waits, or nil.
func (l *Locker) absentFor(callers []*caller) *absence {
	absent, held := l.gates.absence(callers)
	if held {
		return nil
	}
	return cmp.Or(absent, l.absentAmong(callers))
}

// absentAmong returns that of the masters of one of the keys of a call, or nil.
func (l *Locker) absentAmong(callers []*caller) (absent *absence) {
	for i := 0; absent == nil && i < len(callers); i++ {
		absent = l.absent(callers[i].key)
	}
	return absent
}
