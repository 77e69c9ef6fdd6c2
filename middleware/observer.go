package middleware

import (
	"log/slog"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// Observer is told what becomes of the requests of a rule, for metrics; package metrics has one for Prometheus. Its methods are
// called by the requests' goroutines, several at a time: they must not block.
type Observer interface {
	// Begin is called before the first request of a rule, with what may be told of its requests.
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

// Possible is what an Observer may be told of the requests of a rule: metrics have series for nothing else.
type Possible struct {
	Concurrency int       // how many requests may hold a key at a time, the most of the rule's keys; 0 for a rule that takes no locks
	Waits       bool      // requests may wait
	Remembers   bool      // responses are remembered
	Outcomes    []Outcome // of Done
	Passes      []Outcome // of Passed, but for the outcomes of a dry run
}

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
	OutcomeLost       Outcome = "lost"        // the lease ended before the lock was released
	OutcomeCanceled   Outcome = "canceled"    // the client left while the request waited
	OutcomeStopping   Outcome = "stopping"    // the request would have to wait, and the server is about to stop
	OutcomeFailed     Outcome = "failed"      // the Locker is closed, or can't take such a lock

	OutcomeUnclearTarget Outcome = "unclear_target" // a router may take it for another request than an upstream does

	OutcomeBadSignature Outcome = "bad_signature" // the signature is missing, wrong or old
	OutcomeUpgrade      Outcome = "upgrade"       // the request asks for another protocol, such as WebSocket

	OutcomeBodyTooLarge    Outcome = "body_too_large"   // the body is larger than max_body
	OutcomeUnsupportedBody Outcome = "unsupported_body" // the body is neither JSON nor a form, or it is encoded
	OutcomeBodyTimeout     Outcome = "body_timeout"     // the body did not arrive in time
	OutcomeBodyBudget      Outcome = "body_budget"      // there were too many bodies at once
)

// The reasons.
const (
	ReasonNotFinal  Reason = remember.NotFinal  // its status is none that is remembered
	ReasonBrokenOff Reason = remember.BrokenOff // the handler has failed, or given up on its upstream
	ReasonTruncated Reason = remember.Truncated // its body is not as long as was declared
	ReasonStream    Reason = remember.Streamed  // it is a stream of events, or has trailers
	ReasonHijacked  Reason = remember.Hijacked  // its connection was taken over, as for WebSocket
	ReasonTooLarge  Reason = remember.TooLarge  // it is larger than may be remembered: a repeat isn't served, and learns only its status
	ReasonLostLease Reason = remember.LostLease // the lock was lost before it was complete
	ReasonNoQuorum  Reason = "no_quorum"        // no majority of the masters has confirmed it, or the request was served without a lock
	ReasonQuota     Reason = remember.OverQuota // the responses of its rule, or of its scope, take as much of the masters as they may
	ReasonNoRoom    Reason = remember.NoRoom    // too many other responses were being stored; or there was no room for it in memory, and only its status is remembered
	ReasonFailed    Reason = remember.Failed    // it can't be encrypted, or the Locker is closed
)

// possibleOf returns what the Observer of a rule may be told.
func possibleOf(s *Serializer) Possible {
	can := Possible{Passes: []Outcome{OutcomeMissingKey}} // a preflight of CORS lacks a key, and is served
	outcomes := func(possible bool, outcomes ...Outcome) {
		if possible {
			can.Outcomes = append(can.Outcomes, outcomes...)
		}
	}
	outcomes(true, OutcomeMissingKey, OutcomeBadKey, OutcomeUpgrade, OutcomeCanceled, OutcomeFailed)
	outcomes(s.derive != nil, OutcomeHeld)
	outcomes(s.dedupe != nil, OutcomeDuplicate)
	outcomes(s.IdempotencyKey == required, OutcomeMissingID)
	outcomes(len(s.verifiers) > 0, OutcomeBadSignature)
	readsBody := s.readsBody || s.keys == nil && s.derive != nil // as a function may
	outcomes(readsBody, OutcomeBodyTooLarge, OutcomeUnsupportedBody, OutcomeBodyTimeout, OutcomeBodyBudget)
	if s.DryRun {
		outcomes(true, OutcomeDryRun)
		return can
	}
	can.Concurrency, can.Waits, can.Remembers = slices.Max(s.Concurrency), s.Wait > 0, s.Remember > 0
	outcomes(true, OutcomeAcquired, OutcomeNoQuorum, OutcomeLost)
	outcomes(can.Waits, OutcomeStopping)
	outcomes(can.Remembers, OutcomeReplayed, OutcomeMismatch, OutcomeUnreadable)
	if s.OnNoQuorum == Pass {
		can.Passes = append(can.Passes, OutcomeNoQuorum)
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
