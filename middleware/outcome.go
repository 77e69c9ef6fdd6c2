package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Outcome says whether a request got its lock and, if not, why.
type Outcome string

// The outcomes of requests that were served.
const (
	OutcomeAcquired Outcome = "acquired" // the request got its lock
	OutcomeReplayed Outcome = "replayed" // the request got the remembered response, and wasn't served again
	OutcomeDryRun   Outcome = "dry_run"  // the request would have got its lock at once, as far as its rule can know
)

// The outcomes of requests that could not be served with their lock to the end.
const (
	OutcomeHeld       Outcome = "held"        // another request has the lock
	OutcomeNoQuorum   Outcome = "no_quorum"   // too few masters answered: the request was refused, or served without a lock
	OutcomeMissingKey Outcome = "missing_key" // a part of the key is missing: the request was refused, or served without a lock
	OutcomeBadKey     Outcome = "bad_key"     // no certain key can be made from the request
	OutcomeDuplicate  Outcome = "duplicate"   // the same delivery is waiting or running
	OutcomeMismatch   Outcome = "mismatch"    // a response is remembered for the ID, but to a different request
	OutcomeUnreadable Outcome = "unreadable"  // the request was served before, as far as is known, but its response can't be read now
	OutcomeMissingID  Outcome = "missing_id"  // the request lacks the ID that it must have
	OutcomeLost       Outcome = "lost"        // the lock ended before the request released it
	OutcomeCanceled   Outcome = "canceled"    // the client left before the request had its lock
	OutcomeStopping   Outcome = "stopping"    // the request would have had to wait, and the server is about to stop
	OutcomeFailed     Outcome = "failed"      // the Locker is closed or too busy, or the lock can't be asked for

	OutcomeTooManyWaiters Outcome = "too_many_waiters" // as many requests wait for the key as may

	OutcomeMissingScope Outcome = "missing_scope" // the request has an ID, but its sender is not known

	OutcomeUnclearTarget Outcome = "unclear_target" // a router may read the request differently than an upstream does

	OutcomeUnlocked Outcome = "unlocked" // Require refuses the request, because no rule has locked it

	OutcomeBadSignature Outcome = "bad_signature" // the signature is missing, wrong or old
	OutcomeUpgrade      Outcome = "upgrade"       // the request asks for another protocol, such as WebSocket

	OutcomeBodyTooLarge    Outcome = "body_too_large"   // the body is larger than max_body, or than a handler in front allows
	OutcomeUnsupportedBody Outcome = "unsupported_body" // the body is neither JSON nor a form, or it is encoded
	OutcomeBodyTimeout     Outcome = "body_timeout"     // the body did not arrive in time
	OutcomeBodyBroken      Outcome = "body_broken"      // the body can't be read to its end
	OutcomeBodyBudget      Outcome = "body_budget"      // there were too many bodies at once
)

// outcomes has the facts about each Outcome. docs/problems.md has a section for each Outcome.
var outcomes = map[Outcome]struct {
	title    string                 // the title of the response to a refused request; "" if the request is served
	status   int                    // the status of that response, unless a setting of the rule or the error has a different one
	level    slog.Level             // of the log line; Info or Debug if other requests or impatient clients are the cause, which is normal
	possible func(c *compiled) bool // whether requests of the rule can have this outcome: if so, metrics show it from the start, with 0
}{
	OutcomeAcquired: {"", 0, slog.LevelInfo, takesLocks},
	OutcomeReplayed: {"", 0, slog.LevelInfo, remembers},
	OutcomeDryRun:   {"", 0, slog.LevelInfo, func(c *compiled) bool { return c.DryRun && isRule(c) }},

	OutcomeHeld:         {"Another request with the same key is in progress", http.StatusLocked, slog.LevelInfo, func(c *compiled) bool { return c.derive != nil }},
	OutcomeNoQuorum:     {"No lock can be granted now", http.StatusConflict, slog.LevelWarn, takesLocks},
	OutcomeMissingKey:   {"The request lacks a value that its lock key is made of", http.StatusBadRequest, slog.LevelInfo, isRule},
	OutcomeBadKey:       {"No certain lock key can be made of the request", http.StatusBadRequest, slog.LevelInfo, isRule},
	OutcomeDuplicate:    {"The same delivery is in progress", http.StatusConflict, slog.LevelInfo, hasID},
	OutcomeMismatch:     {"The ID was used for another request", http.StatusUnprocessableEntity, slog.LevelInfo, remembers},
	OutcomeUnreadable:   {"The request was served before, and its response can't be read now", http.StatusServiceUnavailable, slog.LevelInfo, remembers},
	OutcomeMissingID:    {"The request lacks an ID", http.StatusBadRequest, slog.LevelInfo, func(c *compiled) bool { return c.IdempotencyKey == required }},
	OutcomeMissingScope: {"The request doesn't say who has sent its ID", http.StatusBadRequest, slog.LevelInfo, func(c *compiled) bool { return c.scope != nil }},
	OutcomeLost:         {"The lock was lost while the request ran; its outcome is unknown", http.StatusInternalServerError, slog.LevelWarn, func(c *compiled) bool { return takesLocks(c) || c.requires }},
	OutcomeCanceled:     {"The client left", statusClientClosed, slog.LevelDebug, isRule},
	OutcomeStopping:     {"The server is about to stop, and the lock is held", http.StatusServiceUnavailable, slog.LevelDebug, mayWait},
	OutcomeFailed:       {"The lock could not be taken", http.StatusInternalServerError, slog.LevelWarn, isRule},

	OutcomeTooManyWaiters: {"Too many requests wait for the same key", http.StatusServiceUnavailable, slog.LevelWarn, mayWait},

	OutcomeUnclearTarget: {"The request can be taken for another one", http.StatusBadRequest, slog.LevelInfo, func(c *compiled) bool { return !isRule(c) }},
	OutcomeUnlocked:      {"The request needs the lock of a rule", http.StatusForbidden, slog.LevelWarn, func(c *compiled) bool { return c.requires }},

	OutcomeBadSignature: {"The request is not signed as it should be", http.StatusUnauthorized, slog.LevelWarn, func(c *compiled) bool { return len(c.verifiers) > 0 }},
	OutcomeUpgrade:      {"Requests for another protocol are not served here", http.StatusForbidden, slog.LevelInfo, isRule},

	OutcomeBodyTooLarge:    {"The body is too large to make a lock key of it", http.StatusRequestEntityTooLarge, slog.LevelInfo, mayReadBody},
	OutcomeUnsupportedBody: {"No lock key can be made of such a body", http.StatusUnsupportedMediaType, slog.LevelInfo, mayReadBody},
	OutcomeBodyTimeout:     {"The body did not arrive in time", http.StatusRequestTimeout, slog.LevelInfo, mayReadBody},
	OutcomeBodyBroken:      {"The body can't be read to its end", http.StatusBadRequest, slog.LevelInfo, mayReadBody},
	OutcomeBodyBudget:      {"Too many bodies are being read", http.StatusServiceUnavailable, slog.LevelWarn, mayReadBody},
}

// isRule reports whether the rule reads keys or IDs from requests. The rule of a Guard doesn't.
func isRule(c *compiled) bool { return c.derive != nil || hasID(c) }

func hasID(c *compiled) bool { return c.dedupe != nil }

func takesLocks(c *compiled) bool { return isRule(c) && !c.DryRun }

func mayWait(c *compiled) bool { return takesLocks(c) && c.Wait > 0 }

func remembers(c *compiled) bool { return takesLocks(c) && c.Remember > 0 }

// mayReadBody reports whether the templates read the body, or a KeyFunc may read it.
func mayReadBody(c *compiled) bool { return c.readsBody || c.keys == nil && c.derive != nil }

func allOutcomes() []Outcome { return slices.Sorted(maps.Keys(outcomes)) }

// Reason says why a rule that remembers responses doesn't remember a response, or only a part of it.
type Reason string

func allReasons() []Reason {
	return []Reason{ReasonNotFinal, ReasonBrokenOff, ReasonTruncated, ReasonStream, ReasonHijacked, ReasonTooLarge, ReasonLostLease, ReasonNoQuorum, ReasonQuota, ReasonNoRoom, ReasonFailed}
}

// reasonOf returns the Reason for an error of a release that should have stored a response, or "" if the masters remember the response.
func reasonOf(err error) Reason {
	switch {
	case !errors.Is(err, redlock.ErrNotRemembered): // the error is about the release, not about the response
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

// endOf returns the outcome of a lock when its handler has returned.
func endOf(lock *redlock.Lock) Outcome {
	if lock.Err() != nil {
		return OutcomeLost
	}
	return OutcomeAcquired
}

// detailOf returns the reason for an outcome, in words for the client. The words may name a placeholder, but never a key, a value of the request or a
// master. So detailOf doesn't quote errors that may contain one of these.
func detailOf(outcome Outcome, err error) string {
	switch outcome {
	case OutcomeAcquired, OutcomeReplayed, OutcomeDryRun:
		return ""
	case OutcomeHeld:
		return detailOfHeld(err)
	case OutcomeNoQuorum:
		return detailOfNoQuorum(err)
	case OutcomeDuplicate:
		return sameDelivery
	case OutcomeUnreadable:
		return "some master remembers a response, which can't be read now"
	case OutcomeMismatch:
		return remember.ErrMismatch.Error()
	case OutcomeTooManyWaiters:
		return "as many requests wait for the lock as may, so this one does not wait"
	case OutcomeStopping:
		return errStopping.Error()
	case OutcomeCanceled:
		return "the client left before the request had its lock"
	case OutcomeLost:
		return "a rule before this one has lost its lock"
	case OutcomeFailed:
		if errors.Is(err, redlock.ErrClosed) {
			return "the server has closed its locks"
		}
		if errors.Is(err, redlock.ErrBusy) {
			return "too many requests ask for locks at once, and the wait was over before this one's turn"
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return "the wait was over before the masters could answer"
		}
		if errors.Is(err, redlock.ErrHeldByCaller) {
			return "the request would wait for a lock that it holds itself"
		}
		if errors.Is(err, remember.ErrUnreadable) {
			return "the remembered response can't be read"
		}
		var reason *refusalReason
		if errors.As(err, &reason) {
			return reason.text
		}
		return "the lock can't be asked for"
	}
	return detailOfRequest(err)
}

// detailOfRequest is detailOf for a request that was refused before its lock was asked for.
func detailOfRequest(err error) string {
	var reason *refusalReason
	var unsigned signature.Error
	var value fold.Error
	why := "no certain key can be made of the request"
	switch {
	case errors.As(err, &reason):
		why = reason.text
	case errors.As(err, &unsigned):
		return string(unsigned)
	case errors.Is(err, errNoWildcard):
		why = errNoWildcard.Error()
	case errors.Is(err, errOtherWildcard):
		why = errOtherWildcard.Error()
	case errors.As(err, &value):
		why = string(value)
	case errors.Is(err, context.Canceled):
		why = "the client left before its body was read"
	}
	var part *keyError
	switch {
	case errors.As(err, &part):
		return "key part {" + part.Placeholder + "}: " + why
	case value != "":
		return "key: " + why
	}
	return why
}

func detailOfHeld(err error) string {
	var held *redlock.HeldError
	slots := 1
	if errors.As(err, &held) {
		slots = held.Slots
	}
	switch {
	case errors.Is(err, redlock.ErrNotWoken):
		return "another request holds the lock, and no request can wait, because the masters deny SUBSCRIBE"
	case slots > 1 && errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("all %d slots were taken for the whole wait", slots)
	case slots > 1:
		return fmt.Sprintf("all %d slots are taken", slots)
	case errors.Is(err, context.DeadlineExceeded):
		return "another request held the lock for the whole wait"
	}
	return "another request holds the lock"
}

func detailOfNoQuorum(err error) string {
	var quorum *redlock.QuorumError
	switch {
	case !errors.As(err, &quorum): // a KeyFunc or handler has itself returned a bare ErrNoQuorum
		return "too few masters are usable"
	case quorum.RetryAfter > 0:
		return fmt.Sprintf("too few masters may vote: some have just started, may have forgotten locks, and vote again in %v", (quorum.RetryAfter + time.Second - 1).Truncate(time.Second))
	case quorum.Total == 0:
		return "other processes use other masters than this one"
	case quorum.Total-len(quorum.Masters) < quorum.Quorum:
		return "too few masters are usable"
	case quorum.Answered < quorum.Quorum:
		return "too few masters answered in time"
	}
	return "a majority of the masters answered, but too late, or not all for this request"
}

func detailOfLost(end inside.End) string {
	switch end {
	case inside.EndMaxHold:
		return "the request held its lock for max_hold"
	case inside.EndForced:
		return "the lock was released by force"
	case inside.EndClosed:
		return "the server has closed its locks"
	case inside.EndGone:
		return "the masters had lost the lock before it was released"
	}
	return "the lease could not be renewed"
}

// logPause is the shortest time between two log lines about one subject, such as an outcome, under one rule.
const logPause = 10 * time.Second

// logPauses limits how many lines a rule logs about its requests, so that many refusals don't flood the log.
type logPauses struct {
	mu   sync.Mutex
	last map[string]logged
}

// logged is the last line about one subject.
type logged struct {
	at     time.Time
	missed int // requests without a line since then
}

// mostPauses bounds how many subjects have lines of their own at a time, because clients can choose some subjects. All further subjects share one
// line.
const mostPauses = 64

// due reports whether a line about this subject, such as an outcome, may be logged now. missed is how many requests got no line since the last line.
// It includes requests about subjects that due forgets now to make room.
func (l *logPauses) due(about string, now time.Time) (missed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	forgotten := 0
	if _, known := l.last[about]; !known && len(l.last) >= mostPauses {
		maps.DeleteFunc(l.last, func(_ string, last logged) bool {
			over := now.Sub(last.at) >= logPause
			if over {
				forgotten += last.missed
			}
			return over
		})
		if len(l.last) >= mostPauses {
			about = ""
		}
	}
	last, known := l.last[about]
	last.missed += forgotten
	if known && now.Sub(last.at) < logPause {
		last.missed++
		l.last[about] = last
		return 0, false
	}
	if l.last == nil {
		l.last = make(map[string]logged)
	}
	l.last[about] = logged{at: now}
	return last.missed, true
}

// ofServer reports whether the server is to blame for an outcome, and not the client or another request.
func ofServer(outcome Outcome) bool {
	return outcome == OutcomeNoQuorum || outcome == OutcomeLost || outcome == OutcomeFailed
}
