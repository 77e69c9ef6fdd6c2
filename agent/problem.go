package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// problem is the error of a request that the agent itself refuses, whatever the lock. It is answered with application/problem+json.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return p.Detail }

func refuse(status int, format string, values ...any) *problem {
	return &problem{http.StatusText(status), status, fmt.Sprintf(format, values...)}
}

// write answers with the problem. The header Redlock-Agent-Error tells a gateway that it isn't about the gateway's own client.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Redlock-Agent-Error", "1")
	if p.Status == http.StatusUnauthorized {
		h.Set("Www-Authenticate", "Bearer")
	}
	if p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may have left
}

// writeError answers a request that did not get its lock.
func writeError(ctx context.Context, w http.ResponseWriter, err error) {
	var own *problem
	var refusal *middleware.Refusal
	switch {
	case errors.As(err, &own):
		own.write(w)
		return
	case errors.As(err, &refusal):
		refusal.Write(w)
		return
	}
	middleware.RefusalOf(ctx, err).Write(w)
}

// refuseOpen answers a request whose body may still be open, so that the client can end that and use the connection again. It gives
// the client a moment for that.
func refuseOpen(w http.ResponseWriter, r *http.Request, t *tail, err error) error {
	control := http.NewResponseController(w)
	answer := &buffered{header: w.Header()}
	writeError(t.ctx, answer, err)
	w.Header().Set("Content-Length", strconv.Itoa(answer.Len()))
	_ = control.SetWriteDeadline(time.Now().Add(writePatience))
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.Bytes()) // the client may have left
	_ = control.Flush()
	_ = control.SetReadDeadline(time.Now().Add(moment))
	if t.stop != nil {
		<-t.ctx.Done()
		return nil
	}
	_, _ = io.CopyN(io.Discard, r.Body, maxTurnLine) // a connection that is closed with unread bytes loses the answer
	return nil
}

const moment = time.Second

// buffered is an answer whose length is wanted.
type buffered struct {
	bytes.Buffer
	header http.Header
	status int
}

func (b *buffered) Header() http.Header    { return b.header }
func (b *buffered) WriteHeader(status int) { b.status = status }

// isOfLock reports whether an error of package redlock says why there is no lock; otherwise it says what is wrong with the call.
func isOfLock(err error) bool {
	for _, known := range []error{redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
