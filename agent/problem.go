package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// problem is a response of type application/problem+json. It says why the agent itself refuses a request.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	Result     *string `json:"result,omitempty"`      // the result of work that was done before; nil for none
	RetryAfter int64   `json:"retry_after,omitempty"` // the seconds until the work may be done again; 0: not known

	done   bool // the work was done before
	closes bool // the client's next request needs another connection
}

func (p *problem) Error() string { return p.Detail }

func refuse(status int, format string, values ...any) *problem {
	return &problem{Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, values...)}
}

// closing makes the response end the connection.
func (p *problem) closing() *problem {
	p.closes = true
	return p
}

// doneProblem is the problem for a client whose work another client has already done. It contains the result of the work or, with once_per, when the
// work was done and when it may be done again.
func doneProblem(done *redlock.DoneError, ofPeriod bool) *problem {
	p := &problem{Title: "The work is done", Status: http.StatusConflict, Detail: "its result is remembered", done: true}
	switch {
	case ofPeriod:
		again := (done.Keep + time.Second - 1).Truncate(time.Second)
		p.RetryAfter = int64(again / time.Second)
		p.Detail = fmt.Sprintf("it was done in this period, %v ago, and may be done again in %v", done.Ago.Truncate(time.Second), again)
	case utf8.Valid(done.Result):
		p.Result = new(string(done.Result))
	}
	return p
}

// write sends the problem. The header Redlock-Agent-Error tells a gateway not to pass the response on to its client, who has done nothing wrong.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.done {
		h.Set("Redlock-Outcome", "done")
	} else {
		h.Set("Redlock-Agent-Error", "1")
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("Www-Authenticate", "Bearer")
	}
	switch {
	case p.Status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case p.RetryAfter > 0:
		h.Set("Retry-After", strconv.FormatInt(p.RetryAfter, 10))
	}
	if p.closes {
		h.Set("Connection", "close")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may have left
}

// responseOf returns the response to a refused request. ctx is the context of the request's wait for the lock.
func responseOf(ctx context.Context, err error) *buffered {
	w := &buffered{header: make(http.Header)}
	var own *problem
	var refusal engine.Refusal
	switch {
	case errors.As(err, &own):
		own.write(w)
	case errors.As(err, &refusal):
		refusal.Write(w)
	default:
		engine.RefusalOf(ctx, err).Write(w)
	}
	return w
}

// buffered is a response that is kept until its length is known.
type buffered struct {
	bytes.Buffer
	header http.Header
	status int
}

func (b *buffered) Header() http.Header    { return b.header }
func (b *buffered) WriteHeader(status int) { b.status = status }

// isOfLock reports whether an error of package redlock says why a lock can't be had now. Any other error means that the request asks for something
// that isn't allowed, such as a TTL that is too long.
func isOfLock(err error) bool {
	for _, known := range []error{redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrUnreadable, redlock.ErrTooManyWaiters, redlock.ErrBusy, redlock.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
