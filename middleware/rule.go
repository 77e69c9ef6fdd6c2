package middleware

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"time"
)

// Rule says how requests are serialized. It is data: New and Compile check it, and make of it what serves requests. The zero value
// of each field is its default; negative durations are "not at all", even if a preset has a value. The names of a configuration,
// such as on_no_quorum, are those of JSON and of Caddy.
type Rule struct {
	// What logs, metrics and traces call the rule: at most 128 printable bytes. It is not secret, and no key. Rules may share a
	// name; then they are counted together. Default: the key templates and the preset.
	Name string `json:"name,omitempty"`
	// Whether operators see who has sent a request that holds a key or waits for it, in the console and its commands: whom authentication
	// has found, and the address. The masters have that meanwhile. It is personal data. Default: false.
	ShowClient bool `json:"show_client,omitempty"`
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
	Wait time.Duration `json:"wait,omitempty"`
	// How long the lease lasts on the masters, which is also how long a key stays locked after this
	// process has died. At most the max_ttl of the app. Default: 10s, or max_ttl if that is less.
	TTL time.Duration `json:"ttl,omitempty"`
	// The longest time that a request may hold its lock; after it the request ends as if the lease were
	// lost. This frees the key of a request that is stuck. Default: 5m.
	MaxHold time.Duration `json:"max_hold,omitempty"`
	// How many requests may hold a key at the same time, in all processes together, 1 to 256: each has one of so many slots, from 0 on,
	// which the upstream finds in the header Redlock-Slot. A request with several keys has a slot of each, and no header. IDs are locked, and
	// answers remembered, as without it. Default: 1.
	Concurrency int `json:"concurrency,omitempty"`
	// How many requests may wait for one key in this process; any more are refused at once.
	// Default: 1000.
	MaxWaiters int `json:"max_waiters,omitempty"`
	// The request header in which the upstream finds the fencing token. If a client sends that header,
	// it is removed. Default: Fencing-Token.
	FenceHeader string `json:"fence_header,omitempty"`
	// The request header in which the upstream finds what is locked, best Redlock-Key: JSON in ASCII with the values of each placeholder,
	// such as {"path.1":["42"]}. If a client sends that header, it is removed. Default: none.
	KeyHeader string `json:"key_header,omitempty"`
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

	// How many bytes of a body are read for a key or a signature; longer bodies are answered
	// with 413. At most the body_budget of the app. Default: 1048576 (1 MiB).
	MaxBody int64 `json:"max_body,omitempty"`
	// How long such a body may take to arrive; a slower one is answered with 408. Default: 10s.
	BodyTimeout time.Duration `json:"body_timeout,omitempty"`
	// Whether to read the whole body before the lock is taken, within max_body, body_timeout and the app's body_budget, even if
	// no key needs it. Then a client that sends slowly does not hold a key meanwhile. A longer body is refused with 413. Do not use
	// it for requests whose body lasts as long as their answer, such as gRPC streams. Default: true with a preset, otherwise false.
	BufferBody *bool `json:"buffer_body,omitempty"`
	// How long a client may keep its answer waiting, at once, or in all and with a second more for each 16 KiB that it has taken; one
	// that is slower is cut off. Default: 10s.
	AnswerTimeout time.Duration `json:"answer_timeout,omitempty"`
	// Whether an answer may wait for its client in memory, within max_body and the app's body_budget. Then the lock is free when
	// the handler is done, and a client that reads slowly does not hold a key. What is flushed is sent at once, as without it. Of an
	// answer for which there is no room, the rest waits for the client with the lock. Default: true with a preset, otherwise false.
	BufferAnswer *bool `json:"buffer_answer,omitempty"`
	// The signature that a request must have. A request without it is answered with 401, and no lock is
	// taken. Default: none.
	Verify *Verify `json:"verify,omitempty"`
	// How far the time in a signature may be from now, if the sender signs the time. Default: 5m.
	ReplayWindow time.Duration `json:"replay_window,omitempty"`
	// The template of the ID that the sender gives a delivery: {http.request.header.X-GitHub-Delivery}. While
	// a request with the same key and ID waits or runs, another one is answered at once. Requests
	// without an ID are not compared. The ID is one value, so [] is not allowed. "off" turns it off, even if
	// the preset has one. Default: the preset's, or none.
	Dedupe string `json:"dedupe,omitempty"`
	// Where the ID is the header Idempotency-Key, as a string in quotes or without them: "required", a request without it
	// is answered with 400, or "optional", it is not compared with others. Then the rule needs no key: it locks the ID alone. "off" turns
	// off that of the preset. Default: the preset's, or none.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// The template of who has sent a request, such as {http.request.header.Authorization}: an ID is only compared with
	// those of the same sender, and nobody gets another's answer. A request without it lacks a part of its key. It is stored
	// hashed. "off" turns off that of the preset. Default: the preset's, or none.
	Scope string `json:"scope,omitempty"`
	// How long the masters remember the final answer to a delivery, one of 4xx for an hour at most: a repeat gets it without being served, with the header
	// Idempotency-Replayed: true. At least 1s; needs dedupe or idempotency_key. Negative: not at all, even if the preset does.
	// Default: the preset's, or not at all.
	Remember time.Duration `json:"remember,omitempty"`
	// How many bytes the body of such an answer may have, at most 983040. Default: 65536 (64 KiB).
	RememberSize int `json:"remember_size,omitempty"`
	// How many bytes the answers of this rule that this process has stored may take on each master, at most 2147483647; further ones
	// are not remembered. One eighth is for answers of 4xx alone, which are kept for an hour at most, and no scope takes more than three
	// times what it leaves to others. Default: 1073741824 (1 GiB).
	RememberQuota int64 `json:"remember_quota,omitempty"`
	// The statuses that are final, from 200 to 499, as numbers or classes such as "2xx". Default: the preset's, or all but 401,
	// 403, 408, 409, 423, 425 and 429.
	RememberStatus []string `json:"remember_status,omitempty"`
	// Whether an ID whose answer is remembered is refused with 422 if the method, the path, the query or the body is
	// another. Without it the host and the path are a part of the ID, as one event may be delivered to several places. The body is read before the lock is taken, within max_body. Default: true, but with the preset of a sender of webhooks false.
	Fingerprint *bool `json:"fingerprint,omitempty"`

	// What to do with a repeat of a delivery that is waiting or running: "refuse" it at once with 409, or have it "wait", for up to Wait,
	// for the answer to the first, which it gets; if that is not remembered, one of those that wait runs. Waiting needs remember and
	// wait. Default: refuse.
	OnDuplicate string `json:"on_duplicate,omitempty"`

	// Whether requests for another protocol, such as WebSocket, may hold a lock for as long as they
	// last, up to max_hold. Default: false, which refuses them with 403.
	AllowUpgrade bool `json:"allow_upgrade,omitempty"`
	// What happens to a request whose client has left: "run" it to its end, up to max_hold, because the upstream may still
	// be working on it and is read until it is done; or "cancel" it, which is an error with remember. Default: run.
	OnClientAbort string `json:"on_client_abort,omitempty"`
	// How long the lock is kept, up to max_hold, after the next handlers have given up: with an error of 499 or more, a panic, or an
	// answer of 502 or 504. The upstream may still be working then. When Caddy exits, the lock is left to its ttl. Default: 0,
	// which releases it at once.
	HoldAfterAbort time.Duration `json:"hold_after_abort,omitempty"`
	// Whether to take no lock and refuse nothing, and only report in {http.redlock.outcome} what would have
	// happened. Default: false.
	DryRun bool `json:"dry_run,omitempty"`

	// BodyBudget bounds the memory for such bodies; rules may share one. Default: one of 64 MiB for all rules without their own.
	BodyBudget *Budget `json:"-"`
	// ClientAddress returns the address of the client, IP or IP:port. No address can get all of the BodyBudget, and ShowClient shows it. Default:
	// RemoteAddr, which behind a proxy is that of the proxy: then all of its clients have one share.
	ClientAddress func(*http.Request) string `json:"-"`
	// OriginalURL returns the URL that the client has asked for: the fingerprint has that one, even if handlers before this one
	// have changed it. Default: the request's RequestURI.
	OriginalURL func(*http.Request) *url.URL `json:"-"`
	// OnReplay is called before a request is answered with the remembered answer, with the request and its turn. Default: nil.
	OnReplay func(*http.Request, Turn) `json:"-"`
	// User returns the name of whom authentication has found to send the request, or "" for nobody: a JWT's subject, for example. It is the
	// scope of a rule that sets none itself, as it stays when a client has a new token, and ShowClient shows it. Default: nil; in Caddy {http.auth.user.id}.
	User func(*http.Request) string `json:"-"`
	// Sealer encrypts the answers on the masters. All processes of the rule must have its keys: an answer that can't be read is
	// refused with 500, because the request must not run again. Default: nil, the masters can read them.
	Sealer *Sealer `json:"-"`
	// Finished reports whether no work can go on after an error of the handler, so that HoldAfterAbort is not needed.
	// Default: nil, work may go on after any error.
	Finished func(error) bool `json:"-"`
	// Shutdown ends when the server is about to stop: requests that wait are then refused with 503 and Retry-After, and no request
	// waits any more. Those that hold their locks run on. Without it the server's Shutdown waits until the whole line has been
	// served. Default: nil, never.
	//
	//	stopping, stop := context.WithCancel(context.Background())
	//	server.RegisterOnShutdown(stop)
	Shutdown context.Context `json:"-"`
	// Observer is told what becomes of the requests, under the rule's Name. Default: nil, nobody.
	Observer Observer `json:"-"`
	// Logger gets a line for refused requests, every 10 s at most for each Outcome, and for locks that were not released in order.
	// Keys are never logged. Lost leases are logged by the Locker, too. Default: with New the Locker's, otherwise no log.
	Logger *slog.Logger `json:"-"`
}

// Verify says how the signature of a webhook is checked, before its lock is taken, so that nobody without the secret can hold a key.
type Verify struct {
	// The provider that signs, which determines how: stripe, github, shopify, slack, standard-webhooks or adyen.
	Scheme string `json:"scheme,omitempty"`
	// The secrets, in Caddy best as placeholders: {env.STRIPE_SECRET} or {file./run/secrets/stripe}. A
	// signature made with any one of them is accepted, so that secrets can be rotated.
	Secrets []string `json:"secrets,omitempty"`
}

// What a rule may do instead of what is the default.
const (
	Pass   = "pass"   // of OnMissingKey and OnNoQuorum: the request is served without a lock
	Cancel = "cancel" // of OnClientAbort

	off      = "off"
	waits    = "wait"
	required = "required"
	optional = "optional"
)

// The defaults.
const (
	DefaultMaxHold = 5 * time.Minute // how long a request may hold its lock

	defaultReplayWindow = 5 * time.Minute
)

// RuleName is what identifies the rule in errors, logs, metrics and traces.
func (rule *Rule) RuleName() string {
	return cmp.Or(rule.Name, defaultName(rule.Keys, rule.Preset), IdempotencyHeader)
}

// setPreset sets what the preset has and the rule doesn't say. The ID of a request is its header Idempotency-Key, or that of Dedupe,
// or there is none.
func (rule *Rule) setPreset(preset Preset) {
	if len(rule.Keys) == 0 && preset.Key != "" {
		rule.Keys = []string{preset.Key}
	}
	if rule.IdempotencyKey == "" && preset.IdempotencyKey && (rule.Dedupe == "" || rule.Dedupe == off) {
		rule.IdempotencyKey = required
	}
	if !rule.identifiesByHeader() {
		rule.Dedupe = cmp.Or(rule.Dedupe, preset.Dedupe)
	}
	if rule.hasID() { // the rule may have turned the preset's ID off, and has no need of its scope then
		rule.Scope = cmp.Or(rule.Scope, preset.Scope)
	}
	if rule.RememberStatus == nil {
		rule.RememberStatus = preset.RememberStatus
	}
	if rule.Fingerprint == nil {
		rule.Fingerprint = new(!preset.IgnoreFingerprint)
	}
	if rule.BufferBody == nil {
		rule.BufferBody = new(rule.Preset != "")
	}
	if rule.BufferAnswer == nil {
		rule.BufferAnswer = new(rule.Preset != "")
	}
	rule.Wait = max(cmp.Or(rule.Wait, preset.Wait), 0)
	rule.HeldStatus = cmp.Or(rule.HeldStatus, preset.HeldStatus)
	rule.MaxBody = cmp.Or(rule.MaxBody, preset.MaxBody)
	rule.Remember = max(cmp.Or(rule.Remember, preset.Remember), 0)
}

func (rule *Rule) setDefaults() {
	rule.MaxHold = cmp.Or(rule.MaxHold, DefaultMaxHold)
	rule.Concurrency = cmp.Or(rule.Concurrency, 1)
	rule.FenceHeader = cmp.Or(rule.FenceHeader, DefaultFenceHeader)
	rule.HeldStatus = cmp.Or(rule.HeldStatus, http.StatusLocked)
	rule.NoQuorumStatus = cmp.Or(rule.NoQuorumStatus, http.StatusConflict)
	rule.OnMissingKey = cmp.Or(rule.OnMissingKey, "refuse")
	rule.OnNoQuorum = cmp.Or(rule.OnNoQuorum, "refuse")
	rule.OnDuplicate = cmp.Or(rule.OnDuplicate, "refuse")
	rule.OnClientAbort = cmp.Or(rule.OnClientAbort, "run")
	rule.MaxBody = cmp.Or(rule.MaxBody, DefaultMaxBody)
	rule.BodyTimeout = cmp.Or(rule.BodyTimeout, DefaultBodyTimeout)
	rule.AnswerTimeout = cmp.Or(rule.AnswerTimeout, DefaultAnswerTimeout)
	rule.BodyBudget = cmp.Or(rule.BodyBudget, defaultBudget)
	rule.ReplayWindow = cmp.Or(rule.ReplayWindow, defaultReplayWindow)
	rule.RememberSize = cmp.Or(rule.RememberSize, DefaultRememberSize)
	rule.RememberQuota = cmp.Or(rule.RememberQuota, DefaultRememberQuota)
	rule.Logger = cmp.Or(rule.Logger, slog.New(slog.DiscardHandler))
}

// identifiesByHeader reports whether the ID of a request is its header Idempotency-Key.
func (rule *Rule) identifiesByHeader() bool {
	return rule.IdempotencyKey == required || rule.IdempotencyKey == optional
}

func (rule *Rule) hasID() bool {
	return rule.identifiesByHeader() || rule.Dedupe != "" && rule.Dedupe != off
}

// hasScope reports whether IDs are told apart by who has sent them.
func (rule *Rule) hasScope() bool { return rule.Scope != "" && rule.Scope != off }

func (rule *Rule) runsToEnd() bool { return rule.OnClientAbort != Cancel }
