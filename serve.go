package caddyredlock

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/internal/explain"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// ServeHTTP serves the request while it holds the lock.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if e := explain.Of(r); e != nil {
		e.Add(h.RuleName(), h.placeholders(), h.serializer.Explain(r))
		return next.ServeHTTP(w, r)
	}
	locker, err := h.app.join()
	if err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	defer h.leave()
	err = h.serializer.Serve(locker, w, r, func(w http.ResponseWriter, inner *http.Request) error {
		turn, _ := middleware.TurnFromContext(inner.Context())
		h.show(r, turn, false)
		return serveInPlace(w, r, inner, next)
	})
	refusal, refused := err.(*middleware.Refusal) //nolint:errorlint // a wrapped one comes from another rule, which has made a response of it
	if !refused {
		return err
	}
	h.show(r, refusal.Turn, true)
	refusal.SetHeaders(w.Header())
	// Don't pass the refusal: caddyhttp.Error would take the status of a HandlerError that it wraps.
	response := caddyhttp.Error(refusal.Status, nil)
	response.Err = publicError{refusal}
	return response
}

// originalURL returns the URL before other handlers have changed it, as handle_path does.
func originalURL(r *http.Request) *url.URL {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		return original.URL
	}
	return r.URL
}

// authenticated returns whom Caddy's authentication has found to send the request.
func authenticated(r *http.Request) string {
	id, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).GetString("http.auth.user.id")
	return id
}

// clientIP returns the client's address as Caddy determines it by trusted_proxies, or that of the connection.
func clientIP(r *http.Request) string {
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return cmp.Or(ip, r.RemoteAddr)
}

// publicError is a refusal whose message names no master, because handle_errors may send {err.message} to clients.
type publicError struct{ *middleware.Refusal }

func (e publicError) Error() string { return e.Turn.Detail }

func (e publicError) Unwrap() error { return e.Refusal }

// serveInPlace copies the inner request over the outer one and serves that, because Caddy's placeholders are bound to the outer
// one: they put back a body that they have read, and show what other handlers change. When the next handler has returned, the
// request has its former context again, as that of the lock has ended. Only the context is switched: a proxy may still be
// reading the request.
func serveInPlace(w http.ResponseWriter, outer, inner *http.Request, next caddyhttp.Handler) error {
	ctx := &insideContext{inside: inner.Context(), outside: outer.Context()}
	*outer = *inner.WithContext(ctx)
	defer ctx.left.Store(true)
	return next.ServeHTTP(w, outer)
}

// insideContext is the context inside until left is set, and then the context outside.
type insideContext struct {
	inside, outside context.Context
	left            atomic.Bool
}

func (c *insideContext) now() context.Context {
	if c.left.Load() {
		return c.outside
	}
	return c.inside
}

func (c *insideContext) Deadline() (time.Time, bool) { return c.now().Deadline() }
func (c *insideContext) Done() <-chan struct{}       { return c.now().Done() }
func (c *insideContext) Err() error                  { return c.now().Err() }
func (c *insideContext) Value(key any) any           { return c.now().Value(key) }

// remain has a request, which is a user of the locker, be another one for as long as its keys are held after it.
func (h *Handler) remain() (leave func()) {
	_, _ = h.app.settings.join() // it is there already
	return h.leave
}

// leave gives the locker back. The last request of a configuration that has been replaced closes it.
func (h *Handler) leave() {
	if err := h.app.settings.leave(); err != nil {
		h.serializer.Logger.Warn("closing the masters", "error", err)
	}
}
