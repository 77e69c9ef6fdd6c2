package middleware

import (
	"context"
	"errors"
	"net/http"
)

// The outcomes of requests that are refused before their lock is asked for, beside MissingKey and BadKey.
const (
	BadSignature Outcome = "bad_signature" // its signature is missing, wrong or old
	Upgrade      Outcome = "upgrade"       // it asks for another protocol, such as WebSocket
	Duplicate    Outcome = "duplicate"     // the same delivery waits or runs already

	// because of the body that a key is made of:
	BodyTooLarge    Outcome = "body_too_large"   // above max_body
	UnsupportedBody Outcome = "unsupported_body" // neither JSON nor a form, or encoded
	BodyTimeout     Outcome = "body_timeout"     // it did not arrive in time
	BodyBudget      Outcome = "body_budget"      // too many bodies at once
)

// rejection is why a request is refused before its lock is asked for. It shows nothing of the request.
type rejection struct {
	outcome Outcome
	status  int
	text    string
}

func (e *rejection) Error() string { return e.text }

var (
	errBodyTooLarge = &rejection{BodyTooLarge, http.StatusRequestEntityTooLarge, "body is larger than max_body"}
	errBodyEncoded  = &rejection{UnsupportedBody, http.StatusUnsupportedMediaType, "body has a Content-Encoding: it would have to be decoded first"}
	errBodyFormat   = &rejection{UnsupportedBody, http.StatusUnsupportedMediaType, "body is neither JSON nor application/x-www-form-urlencoded, in UTF-8"}
	errBodyTimeout  = &rejection{BodyTimeout, http.StatusRequestTimeout, "body did not arrive in time"}
	errBodyBudget   = &rejection{BodyBudget, http.StatusServiceUnavailable, "no room for the body within the budget of all bodies"}
	errBodyBroken   = &rejection{BadKey, http.StatusBadRequest, "body can't be read to its end"}
)

// errTooManyKeys says that a request would have to hold too many locks.
var errTooManyKeys = errors.New("more than 16 different values")

// withoutKey answers a request that was not admitted.
func (rule *Rule) withoutKey(turn Turn, err error, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	refusal := reject(r.Context(), err)
	turn.Outcome = refusal.Turn.Outcome
	if turn.Outcome == MissingKey && rule.PassMissingKey {
		return rule.pass(turn, w, r, next)
	}
	refusal.Turn = turn
	return refusal
}

// reject makes the answer to a request that was not admitted.
func reject(ctx context.Context, err error) *Refusal {
	refusal := &Refusal{Err: err, Status: http.StatusBadRequest, Turn: Turn{Outcome: BadKey}}
	var known *rejection
	switch {
	case errors.As(err, &known):
		refusal.Status, refusal.Turn.Outcome = known.status, known.outcome
		if known == errBodyBudget {
			refusal.RetryAfter = spread(0)
		}
	case ctx.Err() != nil:
		refusal.Status, refusal.Turn.Outcome = statusClientClosed, Canceled
	case errors.Is(err, ErrMissingKey):
		refusal.Turn.Outcome = MissingKey
	}
	return refusal
}
