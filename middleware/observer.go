package middleware

import (
	"log/slog"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// Observer gets the outcomes of a rule's requests, for metrics. Package metrics has an Observer for Prometheus. The goroutines of the requests call
// the methods concurrently, and wait for them, so the methods must not block.
type Observer interface {
	// Begin is called before the first request of a rule, with the events that the Observer may get.
	Begin(rule string, can Possible)
	// Waits is called with 1 when a request begins to wait for its lock, and with -1 when the wait ends, however it ends. A request
	// that doesn't wait, because the rule has no Wait or because the server is about to stop, isn't counted.
	Waits(rule string, n int)
	// Acquired is called when a request has its lock. waited is the time since the request asked for the lock; Turn.Waited counts from the
	// request's arrival, and so includes the time in which its body was read.
	Acquired(rule string, waited time.Duration)
	// Done is called once for each request, served or not, even if its handler panics. The outcome is the Turn's, except that it is OutcomeLost
	// whenever the lock was lost, and OutcomeFailed if the request panicked before it asked for its lock. held is the time from Acquired to the
	// release; it is 0 if the request had no lock of its own. With HoldAfterAbort, Done may come after the response.
	Done(rule string, outcome Outcome, held time.Duration)
	// Passed is called, before Done, for a request that is served without a lock because of OnMissingKey, OnNoQuorum or DryRun. The outcome is the
	// Turn's.
	Passed(rule string, outcome Outcome)
	// Remembered is called for each response to a delivery under a rule that remembers responses. bytes is how many bytes each master keeps for the
	// response. If masters don't keep all of the response, why is the reason; otherwise why is empty.
	Remembered(rule string, bytes int, why Reason)
	// Quota is called when a response is counted against the RememberQuota of its rule. Responses of 4xx, for which refusals is true, have a part of
	// the quota, and all other responses have the rest. size is the size in bytes of the part to which the response belongs. used is how many bytes
	// of this part are taken now.
	Quota(rule string, refusals bool, used, size int64)
}

// Possible are the events that an Observer may get for a rule. Metrics show them from the start, with 0.
type Possible struct {
	Concurrency int       // the most requests that may hold one of the rule's keys at the same time; 0 for a rule that takes no locks
	Waits       bool      // requests may wait
	Remembers   bool      // responses are remembered
	Outcomes    []Outcome // the outcomes with which Done may be called
	Passes      []Outcome // the outcomes with which Passed may be called, except for those of a rule's dry run
}

// The reasons why masters don't keep a response, or not all of it.
const (
	ReasonNotFinal  Reason = remember.NotFinal  // the status of the response isn't final
	ReasonBrokenOff Reason = remember.BrokenOff // the handler has failed, or given up on its upstream
	ReasonTruncated Reason = remember.Truncated // the body is shorter or longer than declared
	ReasonStream    Reason = remember.Streamed  // the response is a stream of events, or has trailers
	ReasonHijacked  Reason = remember.Hijacked  // the handler took over the connection, as for WebSocket
	ReasonTooLarge  Reason = remember.TooLarge  // the response is larger than the limit: a repeat gets only its status
	ReasonLostLease Reason = remember.LostLease // the lock was lost before the response was complete
	ReasonNoQuorum  Reason = "no_quorum"        // no majority of the masters has confirmed that it keeps the response, or there was no lock
	ReasonQuota     Reason = remember.OverQuota // the responses of the rule, or of the scope, already take as much of the masters as they may
	ReasonNoRoom    Reason = remember.NoRoom    // too many responses were being stored; or there was no memory, and only the status is kept
	ReasonFailed    Reason = remember.Failed    // the response can't be encrypted, or the Locker is closed
)

// possibleOf returns the events that the Observer of a rule, or of a Guard, may get.
func possibleOf(c *compiled) Possible {
	can := Possible{Passes: []Outcome{OutcomeMissingKey}} // a CORS preflight has no key, and is served
	for _, outcome := range allOutcomes() {
		if outcomes[outcome].possible(c) {
			can.Outcomes = append(can.Outcomes, outcome)
		}
	}
	if c.requires {
		if can.Passes = nil; c.DryRun {
			can.Passes, can.Outcomes = can.Outcomes, nil
		}
	}
	if takesLocks(c) {
		can.Concurrency, can.Waits, can.Remembers = slices.Max(c.Concurrency), mayWait(c), remembers(c)
		if c.OnNoQuorum == Pass {
			can.Passes = append(can.Passes, OutcomeNoQuorum)
		}
	}
	return can
}

// noteRemembered tells the log and the Observer how many bytes of the response the masters keep, and why they don't keep all of it.
func (s *serving) noteRemembered(bytes int, why Reason, err error) {
	if s.rule.Observer != nil {
		s.rule.Observer.Remembered(s.rule.Name, bytes, why)
	}
	if why == "" {
		return
	}
	message, level := "response is not remembered: a repeat runs again", slog.LevelWarn
	switch {
	case bytes > 0:
		message, level = "response is remembered without its body and headers: a repeat gets the status alone", slog.LevelInfo
	case slices.Contains([]Reason{ReasonNotFinal, ReasonBrokenOff, ReasonStream, ReasonHijacked}, why):
		level = slog.LevelInfo
	}
	s.rule.logSometimes(level, message, string(why), append([]slog.Attr{slog.String("reason", string(why)), slog.Any("error", err)}, s.turn.identity()...)...)
}
