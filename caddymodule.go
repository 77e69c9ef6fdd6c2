// Package caddyredlock is a Caddy module that serializes HTTP requests by key: the handler
// http.handlers.redlock takes a lock on a majority of independent Redis masters (Redlock) before the
// next handler runs, and frees it when that has returned.
//
// The lock is package redlock, the request path package middleware; here is what Caddy needs of
// them: configuration, placeholders, errors, and masters that outlive a reload.
package caddyredlock

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler serializes requests by key. It takes the lock of the request, runs the handlers after it,
// and frees the lock when they have returned. The masters are those of the app redlock (the global
// option redlock).
//
// A request that is not served ends in an error with its status and the header Retry-After, for
// handle_errors: 423 if its lock is held by another request, 409 if too few masters answer, 400 if
// a part of the key is missing, 500 if the lease was lost before anything was written.
//
// It sets these placeholders, for log_append, header, handle_errors and so on:
//
// Placeholder | Description
// ------------|-------------
// `{http.redlock.key}` | The lock key, hashed where it is hashed
// `{http.redlock.fence}` | The fencing token: a number larger than that of every lock on the key before
// `{http.redlock.wait}` | How long the request waited for its lock, in seconds
// `{http.redlock.outcome}` | `acquired`, `held` and so on; docs/problems.md has them all
type Handler struct {
	// The templates of the lock keys, with placeholders: order:{http.request.uri.path.1}. At least
	// one; a request holds the keys of all of them, at most 16. Different values of the placeholders
	// give different keys. A request that lacks one of them has no key. {body.a.0.b} is a field of
	// a body in JSON, or of a form; {body.a[].b} is that of each element, and makes a key of each: a
	// request of which only some elements have it is refused. {body.a|http.request.header.B} is the first
	// that is there, {body.a[].b|body.a[].c} that for each element. Keys over 200 bytes are replaced by
	// their SHA-256.
	Keys []string `json:"key,omitempty"`
	// Settings that fit a sender of webhooks: stripe, github, shopify, paypal, adyen, twilio, slack,
	// square or standard-webhooks. It sets the key, the dedupe, the wait and what docs/presets.md
	// tells, where the rule says nothing else. Default: none.
	Preset string `json:"preset,omitempty"`
	// How long a request waits for its lock. Where requests of this rule take so long that it could
	// not be served in that time, it is refused at once. Below 0: not at all, whatever the preset says.
	// Default: the preset's, or 0, not at all.
	Wait caddy.Duration `json:"wait,omitempty"`
	// How long the lease lasts on the masters; it bounds how long a key stays locked after this
	// process has died. At most the max_ttl of the app. Default: 10s, or max_ttl if that is less.
	TTL caddy.Duration `json:"ttl,omitempty"`
	// The longest time that a request may hold its lock; then it ends as if the lease were lost. It
	// frees the key of a request that is stuck. Default: 5m.
	MaxHold caddy.Duration `json:"max_hold,omitempty"`
	// How many requests may wait for one key in this process; further ones are refused at once.
	// Default: 1000.
	MaxWaiters int `json:"max_waiters,omitempty"`
	// The request header in which the upstream finds the fencing token. What a client sends under
	// that name is always removed. Default: Fencing-Token.
	FenceHeader string `json:"fence_header,omitempty"`
	// The status of the answer if the lock is held by another request, 400 to 599. Default: 423.
	HeldStatus int `json:"held_status,omitempty"`
	// The status of the answer if too few masters answer, 400 to 599. Default: 409.
	NoQuorumStatus int `json:"no_quorum_status,omitempty"`
	// What to do with a request that lacks a part of the key: "refuse" it with 400, or "pass" it on
	// without a lock. Default: refuse.
	OnMissingKey string `json:"on_missing_key,omitempty"`
	// What to do with a request if too few masters answer: "refuse" it, or "pass" it on without a
	// lock. Default: refuse.
	OnNoQuorum string `json:"on_no_quorum,omitempty"`
	// Whether to replace every key by its SHA-256. Default: false, only those over 200 bytes.
	HashKeys bool `json:"hash_keys,omitempty"`

	// How many bytes of a body are read at most for a key or a signature; longer ones are answered
	// with 413. At most the body_budget of the app. Default: 1048576 (1 MiB).
	MaxBody int64 `json:"max_body,omitempty"`
	// How long such a body may take to arrive; then the answer is 408. Default: 10s.
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty"`
	// The signature that a request must have; one that lacks it is answered with 401, and asks for
	// no lock. Default: none.
	Verify *Verify `json:"verify,omitempty"`
	// How far the time in a signature may be from now, where the sender signs it. Default: 5m.
	ReplayWindow caddy.Duration `json:"replay_window,omitempty"`
	// The template of the sender's ID of a delivery: {http.request.header.X-GitHub-Delivery}. While a
	// request with the same key and ID waits or runs, another one is answered at once. A request
	// without ID is not compared. It has one value, and so no []. "off": none, whatever the preset says. Default: the preset's, or none.
	Dedupe string `json:"dedupe,omitempty"`
	// The status of the answer to such a second delivery, 400 to 599. Default: 409.
	DedupeStatus int `json:"dedupe_status,omitempty"`
	// Whether requests for another protocol, such as WebSocket, may hold a lock for as long as they
	// last, up to max_hold. Default: false, they are refused with 403.
	AllowUpgrade bool `json:"allow_upgrade,omitempty"`
	// What becomes of a request whose client has left: "run" it to its end, as the upstream may be
	// at work on it and is read until it is done, or "cancel" it. Default: run.
	OnClientAbort string `json:"on_client_abort,omitempty"`
	// Whether to take no lock and refuse nothing, but tell in {http.redlock.outcome} what was found.
	// Default: false.
	DryRun bool `json:"dry_run,omitempty"`

	app  *App
	keys middleware.Templates
	rule *middleware.Rule
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
	if err := h.check(); err != nil {
		return err
	}
	app, err := ctx.App("redlock")
	if err != nil {
		return fmt.Errorf("getting the redlock app: %w", err)
	}
	h.app = app.(*App)
	if err := h.app.checkTTL(h.TTL); err != nil {
		return err
	}
	h.rule.Logger = ctx.Slogger()
	h.rule.BodyBudget = h.app.bodies
	if err := h.rule.Check(); err != nil {
		return err
	}
	if h.Verify != nil {
		if h.rule.Verify, err = h.Verify.verifier(); err != nil {
			return err
		}
	}
	if h.keys.Global() {
		ctx.Logger().Warn("key has no placeholder: all requests of this rule share one lock")
	}
	return nil
}

// ServeHTTP serves the request while it holds the lock.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if e, ok := r.Context().Value(explainKey{}).(*explained); ok {
		e.add(h, r)
		return next.ServeHTTP(w, r)
	}
	locker, err := h.app.settings.join()
	if err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	defer h.leave()
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	err = h.rule.Serve(locker, h.keys.Keys, w, r, func(w http.ResponseWriter, r *http.Request) error {
		turn, _ := middleware.TurnOf(r.Context())
		setPlaceholders(repl, turn)
		return next.ServeHTTP(w, r)
	})
	refusal, refused := err.(*middleware.Refusal) //nolint:errorlint // one that another rule made, and wrapped, is an answer already
	if !refused {
		return err
	}
	setPlaceholders(repl, refusal.Turn)
	refusal.SetHeaders(w.Header())
	answer := caddyhttp.Error(refusal.Status, nil) // given the refusal, it would take the status of a handler's error in it
	answer.Err = refusal
	return answer
}

// leave gives the masters back. The last request of a configuration that is gone closes them.
func (h *Handler) leave() {
	if err := h.app.settings.leave(); err != nil {
		h.rule.Logger.Warn("closing the masters", "error", err)
	}
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
