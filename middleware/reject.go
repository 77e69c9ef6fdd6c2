package middleware

import (
	"context"
	"errors"
	"net/http"
	"time"
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

// reject makes the answer to a request that has no certain key.
func reject(ctx context.Context, err error) *Refusal {
	refusal := &Refusal{Err: err, Status: http.StatusBadRequest, Turn: Turn{Outcome: BadKey}}
	var known *rejection
	switch {
	case errors.As(err, &known):
		refusal.Status, refusal.Turn.Outcome = known.status, known.outcome
		if known == errBodyBudget {
			refusal.RetryAfter = time.Second
		}
	case ctx.Err() != nil:
		refusal.Status, refusal.Turn.Outcome = statusClientClosed, Canceled
	case errors.Is(err, ErrMissingKey):
		refusal.Turn.Outcome = MissingKey
	}
	return refusal
}
