package middleware

import (
	"crypto/sha256"
	"fmt"
	"math"
	"sync"
	"time"
)

const (
	// DefaultRememberQuota is how many bytes of each master the responses of a rule may take that one process has stored.
	DefaultRememberQuota = 1 << 30

	rememberRefusals = time.Hour // at most: whoever has no rights may cause responses of 4xx, and needs none of them for long
	refusalsPart     = 8         // one part in so many of a quota is for them, and nothing else
	storedOverhead   = 500       // bytes that a response takes on a master beside its own

	quotaSteps = 64 // in which what was stored is forgotten
)

// quota bounds what the masters are asked to remember under a rule: clients that repeat nothing must not fill them. Responses of 4xx have
// a part of their own, so that they keep out no others, and no scope takes more than three times what it leaves to others. It counts what
// this process has stored since the rule was made.
type quota struct {
	mu            sync.Mutex
	finals, other ledger // other is for 4xx
}

// ledger is what was stored of one kind of responses.
type ledger struct {
	limit int64
	keep  time.Duration
	pool  pool   // by scope, hashed
	steps []step // what was stored in the same step of time, the oldest first
}

type step struct {
	ends time.Time // when another step begins
	of   map[string]int64
}

func newQuota(size int64, keep time.Duration) *quota {
	part := max(size/refusalsPart, 1)
	return &quota{
		finals: ledger{limit: size - part, keep: keep, pool: pool{of: make(map[string]int64)}},
		other:  ledger{limit: part, keep: min(keep, rememberRefusals), pool: pool{of: make(map[string]int64)}},
	}
}

func (q *quota) ledger(status int) *ledger {
	if status >= 400 {
		return &q.other
	}
	return &q.finals
}

// take counts a response with this status, and reports whether it may be stored.
func (q *quota) take(status int, scope string, bytes int64, now time.Time) (ok bool, used int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.ledger(status)
	l.forget(now)
	if scope != "" {
		sum := sha256.Sum256([]byte(scope))
		scope = string(sum[:8])
	}
	ok = l.pool.leaves(scope, bytes, l.limit) || scope == "" && l.pool.used+bytes <= l.limit
	if ok {
		l.pool.add(scope, bytes)
		last := len(l.steps) - 1
		if last < 0 || now.After(l.steps[last].ends) {
			l.steps = append(l.steps, step{now.Add(l.keep / quotaSteps), make(map[string]int64)})
			last++
		}
		l.steps[last].of[scope] += bytes
	}
	return ok, l.pool.used
}

// forget gives back what the masters have forgotten.
func (l *ledger) forget(now time.Time) {
	for len(l.steps) > 0 && now.After(l.steps[0].ends.Add(l.keep)) {
		for scope, bytes := range l.steps[0].of {
			l.pool.add(scope, -bytes)
		}
		l.steps = l.steps[1:]
	}
}

// mayRemember counts the response against the quota of its rule, and reports whether the masters may be asked to remember it.
func (s *serving) mayRemember(status, bytes int) bool {
	l := s.rule.quota.ledger(status)
	s.keep = l.keep
	ok, used := s.rule.quota.take(status, s.delivery.User+s.delivery.Scope, int64(bytes+storedOverhead), time.Now())
	if s.rule.Observer != nil {
		s.rule.Observer.Quota(s.rule.Name, status >= 400, used, l.limit)
	}
	return ok
}

func (rule *Serializer) checkQuota() error {
	switch {
	case rule.RememberQuota < 0 || rule.RememberQuota > math.MaxInt32:
		return fmt.Errorf("remember_quota %d: must be from 1 to %d bytes", rule.RememberQuota, math.MaxInt32)
	case rule.Remember > 0:
		rule.quota = newQuota(rule.RememberQuota, rule.Remember)
	}
	return nil
}
