package middleware

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Observer is told what becomes of the requests of a rule, for metrics; package metrics has one for Prometheus. Its methods are
// called by the requests' goroutines, several at a time: they must not block.
type Observer interface {
	// Concurrency is called before the first request of a rule, with how many may hold a key at a time, the most of its keys.
	Concurrency(rule string, n int)
	// Waits is called with 1 when a request begins to wait for its lock, and with -1 when that ends, however it does. A request
	// that doesn't wait, because the rule has no Wait or because the server is about to stop, is not counted.
	Waits(rule string, n int)
	// Acquired is called when a request has its lock. waited is the time since it asked for the lock; Turn.Waited counts from the
	// request's arrival, and so contains the time for which its body was read.
	Acquired(rule string, waited time.Duration)
	// Done is called once for each request, whether it was served or not, even if its handler panics. The outcome is that of the
	// Turn, with two differences: it is OutcomeLost whenever the lock was lost before the handler had returned, even if the response
	// had begun, and OutcomeFailed if the request panicked before its lock was asked for.
	//
	// held is the time from Acquired until the lock was released, and above 0. It is 0 for a request without a lock of its own, as when a rule
	// around this one holds its keys. With HoldAfterAbort the lock, and so Done, may come later than the response.
	Done(rule string, outcome Outcome, held time.Duration)
	// Passed is called, before Done, for a request that is served without a lock, because of OnMissingKey, OnNoQuorum or DryRun. The outcome is
	// that of the Turn.
	Passed(rule string, outcome Outcome)
	// Remembered is called for each response to a delivery under a rule that remembers responses, with the bytes that each master keeps of
	// it, or 0. why is the Reason if that is not all of it, and otherwise empty.
	Remembered(rule string, bytes int, why Reason)
	// Quota is called when a response is counted against the RememberQuota of its rule, with how much of it the responses of its kind take
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
	o.Concurrency(rule.Name, slices.Max(rule.Concurrency))
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

// Outcome is what became of a request's lock.
type Outcome string

// The outcomes of requests that were served.
const (
	OutcomeAcquired Outcome = "acquired" // the request runs, or ran, with its lock
	OutcomeReplayed Outcome = "replayed" // it was answered with the remembered response, without being served
	OutcomeDryRun   Outcome = "dry_run"  // it would have got its lock at once, as far as its rule can know
)

// The outcomes of requests that could not be served with their lock.
const (
	OutcomeHeld       Outcome = "held"        // another request has the lock
	OutcomeNoQuorum   Outcome = "no_quorum"   // too few masters answered; refused, or served without a lock
	OutcomeMissingKey Outcome = "missing_key" // a part of the key is missing; refused, or served without a lock
	OutcomeBadKey     Outcome = "bad_key"     // no certain key can be made of the request
	OutcomeDuplicate  Outcome = "duplicate"   // the same delivery is waiting or running
	OutcomeMismatch   Outcome = "mismatch"    // its ID belongs to another request, whose response is remembered
	OutcomeUnreadable Outcome = "unreadable"  // it is done, as far as is known, but its response can't be read now
	OutcomeMissingID  Outcome = "missing_id"  // the request lacks the ID that it must have
	OutcomeLost       Outcome = "lost"        // the lease ended while the handler ran
	OutcomeCanceled   Outcome = "canceled"    // the client left while the request waited
	OutcomeStopping   Outcome = "stopping"    // the request would have to wait, and the server is about to stop
	OutcomeFailed     Outcome = "failed"      // the Locker is closed, or can't take such a lock

	OutcomeBadSignature Outcome = "bad_signature" // the signature is missing, wrong or old
	OutcomeUpgrade      Outcome = "upgrade"       // the request asks for another protocol, such as WebSocket

	OutcomeBodyTooLarge    Outcome = "body_too_large"   // the body is larger than max_body
	OutcomeUnsupportedBody Outcome = "unsupported_body" // the body is neither JSON nor a form, or it is encoded
	OutcomeBodyTimeout     Outcome = "body_timeout"     // the body did not arrive in time
	OutcomeBodyBudget      Outcome = "body_budget"      // there were too many bodies at once
)

// titles are what the responses to refused requests say.
var titles = map[Outcome]string{
	OutcomeHeld:       "Another request with the same key is in progress",
	OutcomeNoQuorum:   "The lock service can't be reached",
	OutcomeMissingKey: "The request lacks a value that its lock key is made of",
	OutcomeBadKey:     "No certain lock key can be made of the request",
	OutcomeDuplicate:  "The same delivery is in progress",
	OutcomeMismatch:   "The ID was used for another request",
	OutcomeUnreadable: "The request was served before, and its response can't be read now",
	OutcomeMissingID:  "The request lacks an ID",
	OutcomeLost:       "The lock was lost while the request ran; its outcome is unknown",
	OutcomeCanceled:   "The client left",
	OutcomeStopping:   "The server is about to stop, and the lock is held",
	OutcomeFailed:     "The lock could not be taken",

	OutcomeBadSignature: "The request is not signed as it should be",
	OutcomeUpgrade:      "Requests for another protocol are not served here",

	OutcomeBodyTooLarge:    "The body is too large to make a lock key of it",
	OutcomeUnsupportedBody: "No lock key can be made of such a body",
	OutcomeBodyTimeout:     "The body did not arrive in time",
	OutcomeBodyBudget:      "Too many bodies are being read",
}

// Reason is why the response to a delivery is not remembered, under a rule that remembers responses.
type Reason string

// The reasons.
const (
	ReasonNotFinal  Reason = "not_final"          // its status is none that is remembered
	ReasonBrokenOff Reason = "broken_off"         // the handler has failed, or given up on its upstream
	ReasonTruncated Reason = remembered.Truncated // its body is not as long as was declared
	ReasonStream    Reason = remembered.Streamed  // it is a stream of events, or has trailers
	ReasonHijacked  Reason = remembered.Hijacked  // its connection was taken over, as for WebSocket
	ReasonTooLarge  Reason = "too_large"          // it is larger than may be remembered: a repeat isn't served, and learns only its status
	ReasonLostLease Reason = "lost_lease"         // the lock was lost before it was complete
	ReasonNoQuorum  Reason = "no_quorum"          // no majority of the masters has confirmed it, or the request was served without a lock
	ReasonQuota     Reason = "quota"              // the responses of its rule, or of its scope, take as much of the masters as they may
	ReasonNoRoom    Reason = "no_room"            // too many other responses were being stored; or there was no room for it in memory, and only its status is remembered
	ReasonFailed    Reason = "failed"             // it can't be encrypted, or the Locker is closed
)

// Reasons returns all reasons, for metrics that begin at zero.
func Reasons() []Reason {
	return []Reason{ReasonNotFinal, ReasonBrokenOff, ReasonTruncated, ReasonStream, ReasonHijacked, ReasonTooLarge, ReasonLostLease, ReasonNoQuorum, ReasonQuota, ReasonNoRoom, ReasonFailed}
}

// reasonOf returns why a response is not remembered that the masters were asked to remember, or "".
func reasonOf(err error) Reason {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, redlock.ErrNoRoom):
		return ReasonNoRoom
	case errors.Is(err, redlock.ErrNoQuorum):
		return ReasonNoQuorum
	case errors.Is(err, redlock.ErrClosed):
		return ReasonFailed
	case errors.Is(err, redlock.ErrExpired), errors.Is(err, redlock.ErrNotOwner):
		return ReasonLostLease
	}
	return ReasonFailed
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

// logSometimes logs a line about the rule, unless one of this kind was logged just now. Attributes with a nil error are left out.
func (rule *Serializer) logSometimes(level slog.Level, message, kind string, attrs ...slog.Attr) {
	if !rule.Logger.Enabled(context.Background(), level) {
		return
	}
	missed, ok := rule.lines.due("about "+kind, time.Now())
	if !ok {
		return
	}
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Kind() == slog.KindAny && a.Value.Any() == nil })
	if missed > 0 {
		attrs = append(attrs, slog.Int("not_logged", missed))
	}
	rule.Logger.LogAttrs(context.Background(), level, message, append([]slog.Attr{slog.String("rule", rule.Name)}, attrs...)...)
}
