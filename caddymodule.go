// Package caddyredlock is a Caddy module that serializes HTTP requests by key: the handler http.handlers.redlock takes a
// lock on a majority of independent Redis masters (Redlock) before the next handler runs, and releases it when that handler
// has returned.
//
// The lock itself is package redlock, and what happens to a request is package middleware. This package adds what Caddy
// needs: configuration, placeholders, errors, and masters that outlive a reload. Read it in this order:
//
//   - caddymodule.go: the handler http.handlers.redlock and its settings
//   - rule.go: how the settings become a rule of package middleware
//   - serve.go: what happens to a request
//   - placeholders.go: Caddy's placeholders in keys
//   - shown.go: the placeholders that the handler sets, and what it adds to the access log
//   - app.go: the app redlock, which is the global option: the masters and what all rules share
//   - tls.go: TLS to the masters
//   - pool.go: lockers that outlive a reload
//   - metrics.go: metrics that outlive a reload
//   - caddyfile.go, caddyfile_args.go: the Caddyfile syntax
//   - warnings.go: what is logged about settings that are valid but hardly ever meant
//   - command.go, command_*.go: the commands "caddy redlock …"; explain.go, explain_config.go: "caddy redlock explain"
package caddyredlock

import (
	"cmp"
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
// `{http.redlock.wait}` | How long the request waited for its lock, in seconds
// `{http.redlock.outcome}` | `acquired`, `held` and so on; docs/problems.md lists them
// `{http.redlock.detail}` | Why the request has no lock, such as the part of the key that is missing; safe for clients
// `{http.redlock.rule}` | The name of the rule
type Handler struct {
	// What logs, metrics and traces call the rule: at most 128 printable bytes. It is not secret, and no key. Rules may share a
	// name; then they are counted together. Default: the key templates and the preset.
	Name string `json:"name,omitempty"`
	// The templates of the lock keys, with placeholders: order:{http.request.uri.path.1}. At least
	// one; a request holds the keys of all of them, at most 16. Different values of the placeholders
	// make different keys. A request that lacks one of the values has no key. {body.a.0.b} is a field of
	// a body that is JSON or a form. {body.a[].b} is that field of each element, and makes a key of each; a
	// request in which only some elements have the field is refused. {body.a|http.request.header.B} is the
	// first one present, {body.a[].b|body.a[].c} the first one present in each element. Keys over 200 bytes
	// are replaced by their SHA-256.
	Keys []string `json:"key,omitempty"`
	// Recommended settings for a webhook provider: stripe, github, shopify, paypal, adyen, twilio, slack,
	// square or standard-webhooks; or idempotency-key, for APIs. A preset sets the key, the dedupe, the wait and what docs/presets.md
	// lists, unless the rule sets them itself. Default: none.
	Preset string `json:"preset,omitempty"`
	// How long a request waits for its lock. Negative: it does not wait, even if the preset does.
	// Default: the preset's wait, or 0, which means that it does not wait.
	Wait caddy.Duration `json:"wait,omitempty"`
	// How long the lease lasts on the masters, which is also how long a key stays locked after this
	// process has died. At most the max_ttl of the app. Default: 10s, or max_ttl if that is less.
	TTL caddy.Duration `json:"ttl,omitempty"`
	// The longest time that a request may hold its lock; after it the request ends as if the lease were
	// lost. This frees the key of a request that is stuck. Default: 5m.
	MaxHold caddy.Duration `json:"max_hold,omitempty"`
	// How many requests may wait for one key in this process; any more are refused at once.
	// Default: 1000.
	MaxWaiters int `json:"max_waiters,omitempty"`
	// The request header in which the upstream finds the fencing token. If a client sends that header,
	// it is removed. Default: Fencing-Token.
	FenceHeader string `json:"fence_header,omitempty"`
	// The status of the answer if another request holds the lock, 400 to 599. Default: 423.
	HeldStatus int `json:"held_status,omitempty"`
	// The status of the answer if too few masters answer, 400 to 599. Default: 409.
	NoQuorumStatus int `json:"no_quorum_status,omitempty"`
	// What to do with a request that lacks a part of the key: "refuse" it with 400, or "pass" it on
	// without a lock. Default: refuse.
	OnMissingKey string `json:"on_missing_key,omitempty"`
	// What to do with a request if too few masters answer: "refuse" it, or "pass" it on without a
	// lock. Default: refuse.
	OnNoQuorum string `json:"on_no_quorum,omitempty"`
	// Whether to replace every key by its SHA-256. Default: false, which hashes only keys over 200 bytes.
	HashKeys bool `json:"hash_keys,omitempty"`

	// How many bytes of a body are read for a key or a signature; longer bodies are answered
	// with 413. At most the body_budget of the app. Default: 1048576 (1 MiB).
	MaxBody int64 `json:"max_body,omitempty"`
	// How long such a body may take to arrive; a slower one is answered with 408. Default: 10s.
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty"`
	// Whether to read the whole body before the lock is taken, within max_body, body_timeout and the app's body_budget, even if
	// no key needs it. Then a client that sends slowly does not hold a key meanwhile. A longer body is refused with 413. Do not use
	// it for requests whose body lasts as long as their answer, such as gRPC streams. Default: true with a preset, otherwise false.
	BufferBody *bool `json:"buffer_body,omitempty"`
	// The signature that a request must have. A request without it is answered with 401, and no lock is
	// taken. Default: none.
	Verify *Verify `json:"verify,omitempty"`
	// How far the time in a signature may be from now, if the sender signs the time. Default: 5m.
	ReplayWindow caddy.Duration `json:"replay_window,omitempty"`
	// The template of the ID that the sender gives a delivery: {http.request.header.X-GitHub-Delivery}. While
	// a request with the same key and ID waits or runs, another one is answered at once. Requests
	// without an ID are not compared. The ID is one value, so [] is not allowed. "off" turns it off, even if
	// the preset has one. Default: the preset's, or none.
	Dedupe string `json:"dedupe,omitempty"`
	// The status of the answer to such a second delivery, 400 to 599. Default: 409.
	DedupeStatus int `json:"dedupe_status,omitempty"`
	// Where the ID is the header Idempotency-Key, as a string in quotes or without them: "required", a request without it
	// is answered with 400, or "optional", it is not compared with others. Then the rule needs no key: it locks the ID alone. "off" turns
	// off that of the preset. Default: the preset's, or none.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// The template of who has sent a request, such as {http.request.header.Authorization}: an ID is only compared with
	// those of the same sender, and nobody gets another's answer. A request without it lacks a part of its key. It is stored
	// hashed. "off" turns off that of the preset. Default: the preset's, or none.
	Scope string `json:"scope,omitempty"`
	// How long the masters remember the final answer to a delivery: a repeat gets it without being served, with the header
	// Idempotency-Replayed: true. At least 1s; needs dedupe or idempotency_key. Negative: not at all, even if the preset does.
	// Default: the preset's, or not at all.
	Remember caddy.Duration `json:"remember,omitempty"`
	// How many bytes the body of such an answer may have, at most 983040. Default: 65536 (64 KiB).
	RememberSize int `json:"remember_size,omitempty"`
	// The statuses that are final, from 200 to 499, as numbers or classes such as "2xx". Default: the preset's, or all but 401,
	// 403, 408, 409, 423, 425 and 429.
	RememberStatus []string `json:"remember_status,omitempty"`
	// Whether to keep Set-Cookie in such answers. Default: false.
	RememberCookies bool `json:"remember_cookies,omitempty"`
	// What the repeat of a request gets whose answer was larger: "answer", its status and headers with a note, or "run", it is
	// served as well. Default: answer.
	TooLarge string `json:"too_large,omitempty"`
	// Whether an ID whose answer is remembered is refused with 422 if the method, the path, the query or the body is
	// another. Without it the host and the path are a part of the ID, as one event may be delivered to several places. The body is read before the lock is taken, within max_body. Default: true, but with the preset of a sender of webhooks false.
	Fingerprint *bool `json:"fingerprint,omitempty"`

	// Whether requests for another protocol, such as WebSocket, may hold a lock for as long as they
	// last, up to max_hold. Default: false, which refuses them with 403.
	AllowUpgrade bool `json:"allow_upgrade,omitempty"`
	// What happens to a request whose client has left: "run" it to its end, because the upstream may still
	// be working on it and is read until it is done, or "cancel" it. Default: run.
	OnClientAbort string `json:"on_client_abort,omitempty"`
	// How long the lock is kept, up to max_hold, after the next handlers have given up: with an error of 499 or more, a panic, or an
	// answer of 502 or 504. The upstream may still be working then. When Caddy exits, the lock is left to its ttl. Default: 0,
	// which releases it at once.
	HoldAfterAbort caddy.Duration `json:"hold_after_abort,omitempty"`
	// Whether to take no lock and refuse nothing, and only report in {http.redlock.outcome} what would have
	// happened. Default: false.
	DryRun bool `json:"dry_run,omitempty"`
	// Whether to leave out the header Redlock-Outcome of refusals, which has the value of `{http.redlock.outcome}`.
	// Default: false.
	HideOutcome bool `json:"hide_outcome,omitempty"`

	// Whether the access log has the key of a request in its group redlock. It may be personal data. Default: false.
	LogKeys bool `json:"log_keys,omitempty"`

	// Where the Caddyfile has the settings that can only be checked when the configuration is loaded, for error messages.
	Source source `json:"source,omitempty"`

	app      *App
	keys     middleware.Templates
	rule     *middleware.Rule
	hideRule func() // from the metrics; nil if it is not there
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
		return fmt.Errorf("redlock %s: %w", h.name(), h.Source.at(err))
	}
	h.warn(ctx.Logger())
	return nil
}

// name identifies a rule in errors, logs, metrics and traces.
func (h *Handler) name() string {
	return cmp.Or(h.Name, middleware.DefaultName(h.Keys, h.Preset), middleware.IdempotencyHeader)
}

func (h *Handler) provision(ctx caddy.Context) error {
	if err := h.buildRule(); err != nil {
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
	h.rule.ClientAddress = clientIP
	h.rule.Shutdown = exiting
	h.rule.Sealer = h.app.sealer
	h.rule.OriginalURL = originalURL
	h.rule.OnReplay = func(r *http.Request, turn middleware.Turn) { h.show(r, turn, false) }
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnShutdown(noticeExit)
	}
	if h.Verify != nil {
		if h.rule.Verify, err = h.Verify.verifier(); err != nil {
			return err
		}
	}
	if err := h.rule.Check(); err != nil {
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
