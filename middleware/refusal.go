package middleware

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// statusClientClosed is nginx's status for a request whose client has left. Only the log sees it.
const statusClientClosed = 499

// refusalError is the error for a request that isn't served, or that lost its lease before any response was written.
type refusalError struct {
	status     int           // the HTTP status of the response
	retryAfter time.Duration // whole seconds for the header Retry-After; 0 for none
	turn       Turn
	err        error
}

func (e *refusalError) Status() int { return e.status }
func (e *refusalError) Turn() Turn  { return e.turn }

func newRefusal(outcome Outcome, err error) *refusalError {
	return &refusalError{status: outcomes[outcome].status, turn: Turn{Outcome: outcome}, err: err}
}

func (e *refusalError) Error() string { return e.err.Error() }

// Unwrap returns the error that has caused the refusal: an error of the key or of the lock.
func (e *refusalError) Unwrap() error { return e.err }

// refusalReason is the reason why a request is refused before it asks for its lock. Its text contains nothing from the request.
type refusalReason struct {
	outcome Outcome
	text    string
	status  int // 0 for the status of the outcome
}

func (e *refusalReason) Error() string { return e.text }

var (
	errUpgrade      = &refusalReason{outcome: OutcomeUpgrade, text: "request asks for another protocol, which would hold the lock for as long as it lasts"}
	errBodyTooLarge = &refusalReason{outcome: OutcomeBodyTooLarge, text: "body is larger than max_body"}
	errBodyCut      = &refusalReason{outcome: OutcomeBodyTooLarge, text: "body is larger than a handler in front of this one allows"}
	errBodyEncoded  = &refusalReason{outcome: OutcomeUnsupportedBody, text: "body has a Content-Encoding: it would have to be decoded first"}
	errBodyFormat   = &refusalReason{outcome: OutcomeUnsupportedBody, text: "body is neither JSON nor application/x-www-form-urlencoded, in UTF-8"}
	errBodyIsForm   = &refusalReason{outcome: OutcomeUnsupportedBody, text: "body is a form; want JSON"}
	errBodyIsJSON   = &refusalReason{outcome: OutcomeUnsupportedBody, text: "body is JSON; want a form, application/x-www-form-urlencoded"}
	errBodyTimeout  = &refusalReason{outcome: OutcomeBodyTimeout, text: "body did not arrive in time"}
	errBodyBudget   = &refusalReason{outcome: OutcomeBodyBudget, text: "body budget exhausted"}
	errBodyBroken   = &refusalReason{outcome: OutcomeBodyBroken, text: "body can't be read to its end"}
)

var errStopping = errors.New("the lock is held, and the server is about to stop")

// errNoRoom is the error for a request whose response is remembered, but can't be read because there is no room for it in memory.
var errNoRoom = fmt.Errorf("%w: other responses take all the memory that there is for them", redlock.ErrUnreadable)

// duplicateError is the error for a request whose delivery is already waiting or running.
type duplicateError struct{ held *redlock.HeldError }

const sameDelivery = "the same delivery is in progress"

func (e *duplicateError) Error() string { return sameDelivery }

// refusalBeforeLock returns the refusal of a request that hasn't asked for a lock. err can be any error of a KeyFunc, even one of package redlock.
func refusalBeforeLock(ctx context.Context, err error) *refusalError {
	refusal := newRefusal(OutcomeBadKey, err)
	var reason *refusalReason
	var unsigned signature.Error
	switch {
	case errors.As(err, &reason):
		refusal = newRefusal(reason.outcome, err)
		refusal.status = cmp.Or(reason.status, refusal.status)
		if reason == errBodyBudget {
			refusal.retryAfter = spread(0)
		}
	case errors.As(err, &unsigned):
		refusal = newRefusal(OutcomeBadSignature, err)
	case ctx.Err() != nil:
		refusal = refusalOfEnd(ctx, err)
	case errors.Is(err, ErrMissingKey):
		refusal = newRefusal(OutcomeMissingKey, err)
	}
	return refusal
}

// refusalOfEnd returns the refusal of a request whose context has ended: its client has left, or a rule around this one has lost its lock.
func refusalOfEnd(ctx context.Context, err error) *refusalError {
	if cause := context.Cause(ctx); errors.Is(cause, redlock.ErrLost) || errors.Is(cause, redlock.ErrClosed) {
		return newRefusal(OutcomeLost, cause)
	}
	return newRefusal(OutcomeCanceled, err)
}

// SetHeaders sets the headers of the response: Retry-After in seconds, Redlock-Outcome, which distinguishes one 409 from another, and Cache-Control.
// It removes headers with which the handler has described a different body.
func (e *refusalError) SetHeaders(h http.Header) {
	for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		h.Del(name)
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Redlock-Outcome", string(e.turn.Outcome))
	switch { // a 401 must name a scheme
	case e.status != http.StatusUnauthorized:
	case e.turn.Outcome == OutcomeMissingScope:
		h.Set("Www-Authenticate", "Bearer") // the scheme of most APIs
	default:
		h.Set("Www-Authenticate", "Signature")
	}
	if e.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(e.retryAfter/time.Second)))
	}
}

// dropRefusal removes what SetHeaders has set for another rule. In Caddy, a rule in an error route may serve a request that the first rule has
// refused. With Retry-After, the client would take the request for one that wasn't served, and repeat it.
func dropRefusal(h http.Header) {
	if h.Get("Redlock-Outcome") == "" {
		return
	}
	for _, name := range []string{"Cache-Control", "Redlock-Outcome", "Www-Authenticate", "Retry-After"} {
		h.Del(name)
	}
}

// refusalOf returns the refusal that a Rule without settings would have for an error of package redlock. ctx is the request's context.
func refusalOf(ctx context.Context, err error) *refusalError {
	refusal := byDefault(Rule{}).refusalOfLock(ctx, err)
	refusal.turn.Detail = detailOf(refusal.turn.Outcome, err)
	return refusal
}

// Write sends the refusal as application/problem+json; docs/problems.md explains the types.
func (e *refusalError) Write(w http.ResponseWriter) {
	body := remember.Problem{Type: remember.ProblemTypes + string(e.turn.Outcome), Title: outcomes[e.turn.Outcome].title, Status: e.status, Detail: e.turn.Detail}
	e.SetHeaders(w.Header())
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}

// holdTimes has the times for which the last requests of a rule held their locks, on any keys.
type holdTimes struct {
	holds [16]atomic.Int64 // a ring of the latest times, in ns; 0 in the places that aren't used yet
	count atomic.Uint32
}

func (h *holdTimes) add(hold time.Duration) {
	h.holds[h.count.Add(1)%uint32(len(h.holds))].Store(int64(hold))
}

// usual returns the median of the times. While the ring isn't full, its empty places count as 0, because a few times may not be typical.
func (h *holdTimes) usual() time.Duration {
	var holds [len(h.holds)]int64
	for i := range holds {
		holds[i] = h.holds[i].Load()
	}
	slices.Sort(holds[:])
	return time.Duration(holds[len(holds)/2])
}

// retryAfter returns after how long to repeat a request that was refused because its key is held. remaining is the rest of the holder's lease, or 0
// if that isn't known. With n slots, some slot becomes free after about 1/n of the time.
func (h *holdTimes) retryAfter(remaining time.Duration, slots int) time.Duration {
	usual := h.usual() / time.Duration(slots)
	if 0 < remaining && remaining < usual {
		return spread(remaining)
	}
	return spread(usual)
}

// spread rounds d up to whole seconds, at least one, and adds up to a half at random. So requests that were refused together don't come back
// together.
func spread(d time.Duration) time.Duration {
	seconds := max(1, (d+time.Second-1)/time.Second)
	return (seconds + rand.N(1+(seconds+1)/2)) * time.Second
}
