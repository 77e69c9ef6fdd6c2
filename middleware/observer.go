package middleware

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Observer is told what becomes of the requests of a rule, for metrics; package metrics has one for Prometheus. Its methods are
// called by the requests' goroutines, several at a time: they must not block.
type Observer interface {
	// Concurrency is called before the first request of a rule, with how many may hold a key at a time.
	Concurrency(rule string, n int)
	// Waits is called with 1 when a request begins to wait for its lock, and with -1 when that ends, however it does. A request
	// that doesn't wait, because the rule has no Wait or because the server is about to stop, is not counted.
	Waits(rule string, n int)
	// Acquired is called when a request has its lock. waited is the time since it asked for the lock; Turn.Waited counts from the
	// request's arrival, and so contains the time for which its body was read.
	Acquired(rule string, waited time.Duration)
	// Done is called once for each request, whether it was served or not, even if its handler panics. The outcome is that of the
	// Turn, with two differences: it is OutcomeLost whenever the lock was lost before the handler had returned, even if the answer
	// had begun, and OutcomeFailed if the request panicked before its lock was asked for.
	//
	// held is the time from Acquired until the lock was released, and above 0. It is 0 for a request without a lock of its own, as when a rule
	// around this one holds its keys. With HoldAfterAbort the lock, and so Done, may come later than the answer.
	Done(rule string, outcome Outcome, held time.Duration)
	// Passed is called, before Done, for a request that is served without a lock, because of OnMissingKey, OnNoQuorum or DryRun. The outcome is
	// that of the Turn.
	Passed(rule string, outcome Outcome)
	// Remembered is called for each answer to a delivery under a rule that remembers answers, with the bytes that each master keeps of
	// it, or 0. why is the Reason if that is not all of it, and otherwise empty.
	Remembered(rule string, bytes int, why Reason)
	// Quota is called when an answer is counted against the RememberQuota of its rule, with how much of it the answers of its kind take
	// now, and may take: refusals are those of 4xx.
	Quota(rule string, refusals bool, used, size int64)
}

// Outcomes returns all outcomes, for metrics that begin at zero.
func Outcomes() []Outcome {
	return slices.AppendSeq([]Outcome{OutcomeAcquired, OutcomeReplayed, OutcomeDryRun}, maps.Keys(titles))
}

// Observe sets the Observer of the rule, before the first request.
func (rule *Serializer) Observe(o Observer) {
	rule.Observer = o
	o.Concurrency(rule.Name, rule.Concurrency)
}

func (rule *Serializer) observeWaits(n int) {
	if rule.Observer != nil {
		rule.Observer.Waits(rule.Name, n)
	}
}

func (rule *Serializer) observeDone(outcome Outcome, held time.Duration) {
	if rule.Observer != nil {
		rule.Observer.Done(rule.Name, outcome, held)
	}
}

// observeAcquired is called when the request has its lock.
func (s *serving) observeAcquired(waited time.Duration) {
	if s.rule.Observer != nil {
		s.rule.Observer.Acquired(s.rule.Name, waited)
	}
}

// observeUnlocked is called at the end of every request. One that had a lock is done when that is released.
func (s *serving) observeUnlocked() {
	if s.acquired.IsZero() {
		s.rule.observeDone(cmp.Or(s.turn.Outcome, OutcomeFailed), 0)
	}
}

// endOf returns what has become of a lock whose handler has returned.
func endOf(lock *redlock.Lock) Outcome {
	if lock.Err() != nil {
		return OutcomeLost
	}
	return OutcomeAcquired
}

// observeReleased is called when the lock has been released.
func (s *serving) observeReleased() {
	s.rule.observeDone(s.ended, max(time.Since(s.acquired), 1))
}
