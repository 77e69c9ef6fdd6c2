package middleware

import (
	"log/slog"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// Observer hears the outcomes of a rule's requests, for metrics; package metrics has one for Prometheus. The requests' goroutines call its methods,
// several at a time: they must not block.
type Observer interface {
	// Begin is called before the first request of a rule, with the events that may come.
	Begin(rule string, can Possible)
	// Waits is called with 1 when a request begins to wait for its lock, and with -1 when that ends, however it does. A request
	// that doesn't wait, because the rule has no Wait or because the server is about to stop, is not counted.
	Waits(rule string, n int)
	// Acquired is called when a request has its lock. waited is the time since it asked for the lock; Turn.Waited counts from the
	// request's arrival, and so contains the time for which its body was read.
	Acquired(rule string, waited time.Duration)
	// Done is called once for each request, whether it was served or not, even if its handler panics. The outcome is that of the
	// Turn, with two differences: it is OutcomeLost whenever the lock was lost, even if the response had begun, or only the release has
	// found that, and OutcomeFailed if the request panicked before its lock was asked for.
	//
	// held is the time from Acquired until the lock was released, and above 0. It is 0 for a request without a lock of its own, as when a rule
	// around this one holds its keys. With HoldAfterAbort the lock, and so Done, may come later than the response.
	Done(rule string, outcome Outcome, held time.Duration)
	// Passed is called, before Done, for a request that is served without a lock, because of OnMissingKey, OnNoQuorum or DryRun. The outcome is the
	// Turn's.
	Passed(rule string, outcome Outcome)
	// Remembered is called for each response to a delivery under a rule that remembers responses, with the bytes that each master keeps of it, or 0.
	// why is the Reason if masters don't keep all of it, and otherwise empty.
	Remembered(rule string, bytes int, why Reason)
	// Quota is called when a response is counted against the RememberQuota of its rule, with how much of it the responses of its kind take
	// now, and may take: refusals are those of 4xx.
	Quota(rule string, refusals bool, used, size int64)
}

// Possible are the events that an Observer may get for a rule: metrics have series for nothing else.
type Possible struct {
	Concurrency int       // how many requests may hold a key at a time, the most of the rule's keys; 0 for a rule that takes no locks
	Waits       bool      // requests may wait
	Remembers   bool      // responses are remembered
	Outcomes    []Outcome // of Done
	Passes      []Outcome // of Passed, except for the outcomes of a dry run
}

// The reasons.
const (
	ReasonNotFinal  Reason = remember.NotFinal  // its status isn't one that is remembered
	ReasonBrokenOff Reason = remember.BrokenOff // the handler has failed, or given up on its upstream
	ReasonTruncated Reason = remember.Truncated // its body is not as long as was declared
	ReasonStream    Reason = remember.Streamed  // it is a stream of events, or has trailers
	ReasonHijacked  Reason = remember.Hijacked  // its connection was taken over, as for WebSocket
	ReasonTooLarge  Reason = remember.TooLarge  // it is larger than the limit: a repeat isn't served, and gets only its status
	ReasonLostLease Reason = remember.LostLease // the lock was lost before it was complete
	ReasonNoQuorum  Reason = "no_quorum"        // no majority of the masters has confirmed it, or the request was served without a lock
	ReasonQuota     Reason = remember.OverQuota // the responses of its rule, or of its scope, take as much of the masters as they may
	ReasonNoRoom    Reason = remember.NoRoom    // too many other responses were being stored; or there was no room for it in memory, and only its status is remembered
	ReasonFailed    Reason = remember.Failed    // it can't be encrypted, or the Locker is closed
)

// possibleOf returns the events that the Observer of a rule, or of a Guard, may get.
func possibleOf(c *compiled) Possible {
	can := Possible{Passes: []Outcome{OutcomeMissingKey}} // a preflight of CORS lacks a key, and is served
	for _, outcome := range Outcomes() {
		if outcomes[outcome].possible(c) {
			can.Outcomes = append(can.Outcomes, outcome)
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

// noteRemembered tells the log and the Observer how many bytes of the response the masters remember, and why not all of it.
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
