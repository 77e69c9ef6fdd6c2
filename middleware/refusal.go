package middleware

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// statusClientClosed is nginx's status, for the log, of a request whose client has left.
const statusClientClosed = 499

// Refusal says that a request was not served, or that its lease was lost before anything was
// written.
type Refusal struct {
	Status     int           // the HTTP status
	RetryAfter time.Duration // whole seconds for the header Retry-After; 0 for none
	Turn       Turn
	Err        error
}

func (e *Refusal) Error() string { return e.Err.Error() }

// Unwrap gives the error of the lock or of the key.
func (e *Refusal) Unwrap() error { return e.Err }

// refuse makes the answer to a request whose lock could not be had.
func (rule *Rule) refuse(ctx context.Context, err error) *Refusal {
	refusal := &Refusal{Err: err, RetryAfter: spread(0)}
	var held *redlock.HeldError
	var quorum *redlock.QuorumError
	var duplicate *duplicateError
	switch {
	case ctx.Err() != nil:
		refusal.Status, refusal.Turn.Outcome, refusal.RetryAfter = statusClientClosed, Canceled, 0
	case errors.As(err, &duplicate):
		refusal.Status, refusal.Turn.Outcome = cmp.Or(rule.DedupeStatus, http.StatusConflict), Duplicate
		refusal.RetryAfter = rule.pace.retryAfter(duplicate.held.RetryAfter)
	case errors.As(err, &held):
		refusal.Status, refusal.Turn.Outcome = cmp.Or(rule.HeldStatus, http.StatusLocked), Held
		refusal.RetryAfter = rule.pace.retryAfter(held.RetryAfter)
	case errors.As(err, &quorum):
		refusal.Status, refusal.Turn.Outcome = cmp.Or(rule.NoQuorumStatus, http.StatusConflict), NoQuorum
		refusal.RetryAfter = spread(quorum.RetryAfter)
	case errors.Is(err, context.DeadlineExceeded): // the wait was over before the first attempt could end
		refusal.Status, refusal.Turn.Outcome = cmp.Or(rule.NoQuorumStatus, http.StatusConflict), NoQuorum
	case errors.Is(err, redlock.ErrClosed):
		refusal.Status, refusal.Turn.Outcome = http.StatusServiceUnavailable, Failed
	default:
		refusal.Status, refusal.Turn.Outcome, refusal.RetryAfter = http.StatusInternalServerError, Failed, 0
	}
	return refusal
}

// SetHeaders sets the headers of the answer: Retry-After in seconds, and
// Cache-Control. It removes those that tell of a body which the handler has not come to write.
func (e *Refusal) SetHeaders(h http.Header) {
	for _, name := range []string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"} {
		h.Del(name)
	}
	h.Set("Cache-Control", "no-store")
	if e.Status == http.StatusUnauthorized {
		h.Set("Www-Authenticate", "Signature") // such an answer must name a scheme
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(e.RetryAfter/time.Second)))
	}
}

// problem is the body of an answer (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

const problems = "https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#"

var titles = map[Outcome]string{
	Held:       "Another request with the same key is in progress",
	NoQuorum:   "The lock service can't be reached",
	MissingKey: "The request lacks a value that its lock key is made of",
	BadKey:     "No certain lock key can be made of the request",
	Lost:       "The lock was lost while the request ran; its outcome is unknown",
	Canceled:   "The client left",
	Failed:     "The lock could not be taken",

	Upgrade:      "Requests for another protocol are not served here",
	Duplicate:    "The same delivery is in progress",
	BadSignature: "The request is not signed as it should be",

	BodyTooLarge:    "The body is too large to make a lock key of it",
	UnsupportedBody: "No lock key can be made of such a body",
	BodyTimeout:     "The body did not arrive in time",
	BodyBudget:      "Too many bodies are being read",
}

// write answers as application/problem+json. The detail names at most a placeholder: never a key,
// a value or a master.
func (e *Refusal) write(w http.ResponseWriter) {
	body := problem{Type: problems + string(e.Turn.Outcome), Title: titles[e.Turn.Outcome], Status: e.Status}
	var key *KeyError
	if errors.As(e.Err, &key) {
		body.Detail = key.Error()
	}
	e.SetHeaders(w.Header())
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}
