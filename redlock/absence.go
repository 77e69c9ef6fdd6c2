package redlock

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// absence means that too few masters have a vote for a key. Once a gate has an absence, nobody changes it.
type absence struct {
	since time.Time // when this process noticed it
	err   *QuorumError
}

// rest returns how long a call may still wait for masters: the time that WithMastersWait allows, less the age of the absence. It is negative if that
// time is over. Without an absence, it is the whole time.
func (a *absence) rest(masters time.Duration) time.Duration {
	if a == nil {
		return masters
	}
	return masters - time.Since(a.since)
}

// absentFor returns the absence for a key as far as this process knows without asking the masters, or nil.
func (l *shared) absentFor(key string) *absence {
	since, failed := l.voters.Absent(key)
	if since.IsZero() {
		return nil
	}
	return &absence{since, noQuorum(l.voters, vote.Verdict{Total: len(l.voters.Streams), Failed: failed})}
}

// lacked returns the absence that made an attempt fail, or nil if enough masters had a vote.
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

// mayAsk reports whether a call may ask the masters for a key for which too few of them have a vote. In each askGap, one call of the process may.
// Thousands of calls may wait for such keys, and the result of one attempt tells them enough.
func (l *shared) mayAsk() bool {
	now, last := int64(time.Since(l.gates.began)), l.askedAbsent.Load()
	return now-last >= int64(askGap) && l.askedAbsent.CompareAndSwap(last, now)
}
