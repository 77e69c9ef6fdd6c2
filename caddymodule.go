// Package caddyredlock is a Caddy module that serializes HTTP requests by key: the handler http.handlers.redlock takes a
// lock on a majority of independent Redis masters (Redlock) before the next handler runs, and releases it when that handler
// has returned.
//
// The lock itself is package redlock, and what happens to a request is package middleware. This package adds what Caddy
// needs: configuration, placeholders, errors, and masters that outlive a reload. Read it in this order:
//
//   - caddymodule.go: the handler http.handlers.redlock and its settings
//   - rule.go: how the settings, which are a middleware.Rule, are checked
//   - serve.go: what happens to a request
//   - placeholders.go: Caddy's placeholders in keys
//   - shown.go: the placeholders that the handler sets, and what it adds to the access log
//   - app.go: the app redlock, which is the global option: the masters and what all rules share
//   - tls.go: TLS to the masters
//   - pool.go: lockers that outlive a reload
//   - metrics.go: metrics that outlive a reload
//   - caddyfile.go: the Caddyfile syntax
//   - warnings.go: what is logged about settings that are valid but hardly ever meant
//
// The commands "caddy redlock …" are internal/caddycli.
package caddyredlock

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/internal/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler serializes requests by key. It takes the lock of the request, runs the next handlers, and
// releases the lock when they have returned. The masters are those of the app redlock (the global
// option redlock).
//
// A request that is not served ends in an error with a status and, where a retry makes sense, the header
// Retry-After, for handle_errors: 423 if another request holds the lock, 409 if too few masters answer,
// 400 if a part of the key is missing, 500 if the lease was lost before anything was written.
//
// It sets these placeholders, for log_append, header, handle_errors and so on:
//
// Placeholder | Description
// ------------|-------------
// `{http.redlock.key}` | The lock key, or its hash if the key is hashed
// `{http.redlock.fence}` | The fencing token: a number larger than that of every earlier lock on the key
// `{http.redlock.slot}` | Which slot the request has, from 0 on, if the rule has a concurrency above 1
// `{http.redlock.wait}` | How long the request waited for its lock, in seconds
// `{http.redlock.outcome}` | `acquired`, `held` and so on; docs/problems.md lists them
// `{http.redlock.detail}` | Why the request has no lock, such as the part of the key that is missing; safe for clients
// `{http.redlock.rule}` | The name of the rule
type Handler struct {
	middleware.Rule

	// Where the Caddyfile has the settings that can only be checked when the configuration is loaded, for error messages.
	Source source `json:"source,omitempty"`

	app        *App
	serializer *middleware.Serializer
	hideRule   func() // from the metrics; nil if it is not there
}

// UnmarshalJSON reads the settings as Caddy does, with durations such as "2s" and "1d".
func (h *Handler) UnmarshalJSON(text []byte) error {
	type plain Handler // without this method
	return rule.Unmarshal(text, (*plain)(h))
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.redlock",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision checks the configuration and finds the masters.
func (h *Handler) Provision(ctx caddy.Context) error {
	if err := h.provision(ctx); err != nil {
		return fmt.Errorf("redlock %s: %w", h.RuleName(), h.Source.at(err))
	}
	h.warn(ctx.Logger())
	return nil
}

func (h *Handler) provision(ctx caddy.Context) error {
	if err := h.check(); err != nil {
		return err
	}
	app, err := ctx.App("redlock")
	if err != nil {
		return fmt.Errorf("getting the redlock app: %w", err)
	}
	h.app = app.(*App)
	if err := h.app.checkTTL(caddy.Duration(h.TTL)); err != nil {
		return err
	}
	rule := h.Rule // its settings stay as they were given
	rule.Finished = finished
	rule.Logger = ctx.Slogger()
	rule.BodyBudget = h.app.bodies
	rule.ClientAddress = clientIP
	rule.Shutdown = exiting
	rule.Sealer = h.app.sealer
	rule.OriginalURL = originalURL
	rule.User = authenticated
	rule.OnReplay = func(r *http.Request, turn middleware.Turn) { h.show(r, turn, false) }
	rule.OnHold = h.remain
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnShutdown(noticeExit)
	}
	if rule.Verify, err = withSecrets(h.Verify); err != nil {
		return err
	}
	if h.serializer, err = middleware.Compile(rule, placeholderOf); err != nil {
		return err
	}
	h.countRequests()
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
