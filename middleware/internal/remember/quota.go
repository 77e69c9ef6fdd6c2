package remember

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
)

const (
	keepRefusals   = time.Hour // the longest time for a response of 4xx, because even unauthorized clients can cause many such responses
	refusalsPart   = 8         // 1/refusalsPart of a quota is for responses of 4xx alone, and they get no more than that
	storedOverhead = 500       // bytes that a response takes on a master in addition to its own

	quotaSteps = 64 // the quota frees the bytes of expired responses in this many steps, so that it needs no entry for each response
)

// quota bounds how many bytes the masters are asked to remember under a rule, so that clients that never repeat a request can't fill the masters.
// Responses of 4xx have a separate part, so that they take nothing from other responses. No known sender takes more than three times as much as it
// leaves free for others. The quota counts the responses that this process has stored since the rule was made.
type quota struct {
	mu               sync.Mutex
	finals, refusals ledger
}

// ledger counts the stored responses of one kind: 4xx, or all others.
type ledger struct {
	limit int64
	keep  time.Duration
	pool  budget.Pool // the bytes of each sender, under the sender's hash
	steps []step      // the bytes that were stored in each step of time, the oldest first
}

type step struct {
	ends time.Time // a response after this time begins the next step
	of   map[string]int64
}

// Usage is how much of a quota the responses of one kind take.
type Usage struct {
	Refusals   bool // the kind: responses of 4xx, or all others
	Used, Size int64
}

func newQuota(size int64, keep time.Duration) *quota {
	part := max(size/refusalsPart, 1)
	return &quota{
		finals:   ledger{limit: size - part, keep: keep, pool: budget.NewPool()},
		refusals: ledger{limit: part, keep: min(keep, keepRefusals), pool: budget.NewPool()},
	}
}

// count counts a response with this status. It reports whether the response may be stored, and for how long.
func (q *quota) count(status int, sender string, bytes int64, now time.Time) (fits bool, keep time.Duration, usage Usage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := &q.finals
	if status >= 400 {
		l = &q.refusals
	}
	l.forget(now)
	if sender != "" {
		sum := sha256.Sum256([]byte(sender))
		sender = string(sum[:8])
	}
	fits = l.pool.Leaves(sender, bytes, l.limit) || sender == "" && l.pool.Used()+bytes <= l.limit
	if fits {
		l.pool.Add(sender, bytes)
		last := len(l.steps) - 1
		if last < 0 || now.After(l.steps[last].ends) {
			l.steps = append(l.steps, step{now.Add(l.keep / quotaSteps), make(map[string]int64)})
			last++
		}
		l.steps[last].of[sender] += bytes
	}
	return fits, l.keep, Usage{status >= 400, l.pool.Used(), l.limit}
}

// forget gives back the bytes of responses that the masters have forgotten by now.
func (l *ledger) forget(now time.Time) {
	for len(l.steps) > 0 && now.After(l.steps[0].ends.Add(l.keep)) {
		for sender, bytes := range l.steps[0].of {
			l.pool.Add(sender, -bytes)
		}
		l.steps = l.steps[1:]
	}
}
