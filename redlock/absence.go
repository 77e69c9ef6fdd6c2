package redlock

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// absence is that of masters, of which too few have a vote for a key. It doesn't change.
type absence struct {
	since time.Time // when this process got to know of it
	err   *QuorumError
}

// rest returns for how long a call may still wait for the masters; where none are absent, as long as for any. masters is for how long in all.
func (a *absence) rest(masters time.Duration) time.Duration {
	if a == nil {
		return masters
	}
	return masters - time.Since(a.since)
}

// absentFor returns that of the masters of a key by what this process knows without asking them, or nil.
func (l *shared) absentFor(key string) *absence {
	since, failed := l.voters.Absent(key)
	if since.IsZero() {
		return nil
	}
	return &absence{since, noQuorum(l.voters, vote.Verdict{Total: len(l.voters.Streams), Failed: failed})}
}

// lacked returns that of the masters of a key which a lost attempt has lacked, or nil.
func (l *shared) lacked(a *vote.Attempt, key string) *absence {
	err, excluded := l.excluded().(*QuorumError)
	switch {
	case excluded:
	case a.TooFew():
		err = noQuorum(l.voters, a.Lacks())
	default:
		return nil
	}
	since := time.Now()
	if known := l.absentFor(key); known != nil && known.since.Before(since) {
		since = known.since
	}
	return &absence{since, err}
}

// mayAsk reports whether a call may ask for a key for which too few masters have a vote: in a while one call of the process does, and thousands
// wait for what it finds out.
func (l *shared) mayAsk() bool {
	now, last := int64(time.Since(l.gates.began)), l.askedAbsent.Load()
	return now-last >= int64(askGap) && l.askedAbsent.CompareAndSwap(last, now)
}
