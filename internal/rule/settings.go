// Package rule has the settings of a rule of package middleware as configurations name them: those of the Caddy handler, in JSON, and
// those that a gateway sends to the agent.
package rule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Settings are those of a rule. The zero value has the defaults, and lacks a key.
type Settings struct {
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
	Wait Duration `json:"wait,omitempty"`
	// How long the lease lasts on the masters, which is also how long a key stays locked after this
	// process has died. At most the max_ttl of the app. Default: 10s, or max_ttl if that is less.
	TTL Duration `json:"ttl,omitempty"`
	// The longest time that a request may hold its lock; after it the request ends as if the lease were
	// lost. This frees the key of a request that is stuck. Default: 5m.
	MaxHold Duration `json:"max_hold,omitempty"`
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

	// How many bytes of a body are read for a key or a signature; longer bodies are answered
	// with 413. At most the body_budget of the app. Default: 1048576 (1 MiB).
	MaxBody int64 `json:"max_body,omitempty"`
	// How long such a body may take to arrive; a slower one is answered with 408. Default: 10s.
	BodyTimeout Duration `json:"body_timeout,omitempty"`
	// Whether to read the whole body before the lock is taken, within max_body, body_timeout and the app's body_budget, even if
	// no key needs it. Then a client that sends slowly does not hold a key meanwhile. A longer body is refused with 413. Do not use
	// it for requests whose body lasts as long as their answer, such as gRPC streams. Default: true with a preset, otherwise false.
	BufferBody *bool `json:"buffer_body,omitempty"`
	// The signature that a request must have. A request without it is answered with 401, and no lock is
	// taken. Default: none.
	Verify *Verify `json:"verify,omitempty"`
	// How far the time in a signature may be from now, if the sender signs the time. Default: 5m.
	ReplayWindow Duration `json:"replay_window,omitempty"`
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
	// How long the masters remember the final answer to a delivery: a repeat gets it without being served, with the header
	// Idempotency-Replayed: true. At least 1s; needs dedupe or idempotency_key. Negative: not at all, even if the preset does.
	// Default: the preset's, or not at all.
	Remember Duration `json:"remember,omitempty"`
	// How many bytes the body of such an answer may have, at most 983040. Default: 65536 (64 KiB).
	RememberSize int `json:"remember_size,omitempty"`
	// The statuses that are final, from 200 to 499, as numbers or classes such as "2xx". Default: the preset's, or all but 401,
	// 403, 408, 409, 423, 425 and 429.
	RememberStatus []string `json:"remember_status,omitempty"`
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
	HoldAfterAbort Duration `json:"hold_after_abort,omitempty"`
	// Whether to take no lock and refuse nothing, and only report in {http.redlock.outcome} what would have
	// happened. Default: false.
	DryRun bool `json:"dry_run,omitempty"`
}

// Placeholder returns what reads the value of a placeholder, in a template of this rule. (*middleware.Rule).Placeholder is one.
type Placeholder func(rule *middleware.Rule, name string) (middleware.KeyFunc, error)

// RuleName is what identifies the rule in errors, logs, metrics and traces.
func (s *Settings) RuleName() string {
	return cmp.Or(s.Name, middleware.DefaultName(s.Keys, s.Preset), middleware.IdempotencyHeader)
}

// Fill fills in a rule, which may have what no setting says, such as its BodyBudget. It returns the templates of the keys, nil if the
// rule locks only IDs. Verify is left to the caller, who knows where the secrets are. Errors begin with the name of the setting.
func (s *Settings) Fill(into *middleware.Rule, placeholder Placeholder) (middleware.Templates, error) {
	var preset middleware.Preset
	var err error
	if s.Preset != "" {
		if preset, err = middleware.LookupPreset(s.Preset); err != nil {
			return nil, err
		}
	}
	s.copyTo(into, preset)
	compile := func(name string) (middleware.KeyFunc, error) { return placeholder(into, name) }
	var keys middleware.Templates
	if templates := s.templates(preset); len(templates) > 0 {
		if keys, err = middleware.ParseTemplates(templates, compile); err != nil {
			return nil, err
		}
	}
	b := builder{s, into, preset, compile}
	if err := b.remember(keys != nil); err != nil {
		return nil, err
	}
	if s.Verify != nil {
		if err := s.Verify.Check(); err != nil {
			return nil, err
		}
	}
	if err := s.choose(into); err != nil {
		return nil, err
	}
	return keys, into.Check()
}

// copyTo copies what needs no thought.
func (s *Settings) copyTo(into *middleware.Rule, preset middleware.Preset) {
	into.Name = s.RuleName()
	into.Wait = max(cmp.Or(time.Duration(s.Wait), preset.Wait), 0)
	into.TTL = time.Duration(s.TTL)
	into.MaxHold = time.Duration(s.MaxHold)
	into.HoldAfterAbort = time.Duration(s.HoldAfterAbort)
	into.MaxWaiters = s.MaxWaiters
	into.FenceHeader = s.FenceHeader
	into.HeldStatus = cmp.Or(s.HeldStatus, preset.HeldStatus)
	into.NoQuorumStatus = s.NoQuorumStatus
	into.MaxBody = cmp.Or(s.MaxBody, preset.MaxBody)
	into.BodyTimeout = time.Duration(s.BodyTimeout)
	into.BufferBody = s.Preset != ""
	if s.BufferBody != nil {
		into.BufferBody = *s.BufferBody
	}
	into.ReplayWindow = time.Duration(s.ReplayWindow)
	into.AllowUpgrade = s.AllowUpgrade
	into.DryRun = s.DryRun
	into.Remember = max(cmp.Or(time.Duration(s.Remember), preset.Remember), 0)
	into.RememberSize = s.RememberSize
	into.IgnoreFingerprint = preset.IgnoreFingerprint
}

func (s *Settings) templates(preset middleware.Preset) []string {
	if len(s.Keys) == 0 && preset.Key != "" {
		return []string{preset.Key}
	}
	return s.Keys
}

// choose reads the settings that are one of two words.
func (s *Settings) choose(into *middleware.Rule) error {
	for _, choice := range []struct {
		option, value, otherwise, special string
		into                              *bool
	}{
		{"on_missing_key", s.OnMissingKey, "refuse", "pass", &into.PassMissingKey},
		{"on_no_quorum", s.OnNoQuorum, "refuse", "pass", &into.PassNoQuorum},
		{"on_client_abort", cmp.Or(s.OnClientAbort, "run"), "cancel", "run", &into.RunToEnd},
	} {
		switch choice.value {
		case choice.special:
			*choice.into = true
		case "", choice.otherwise:
		default:
			return fmt.Errorf("%s %q: want %s or %s", choice.option, choice.value, choice.otherwise, choice.special)
		}
	}
	return nil
}

// Verify configures how the signature of a webhook is checked, before its lock is taken.
type Verify struct {
	// The provider that signs, which determines how: stripe, github, shopify, slack, standard-webhooks or adyen.
	Scheme string `json:"scheme,omitempty"`
	// The secrets, best as placeholders: {env.STRIPE_SECRET} or {file./run/secrets/stripe}. A
	// signature made with any one of them is accepted, so that secrets can be rotated.
	Secrets []string `json:"secrets,omitempty"`
}

// Verifier returns the verifier, for the secrets that resolve makes of the texts. Its errors show no values, because they are
// secrets.
func (v *Verify) Verifier(resolve func(text string) (string, error)) (*middleware.Verifier, error) {
	secrets := make([]string, len(v.Secrets))
	for i, text := range v.Secrets {
		var err error
		if secrets[i], err = resolve(text); err != nil {
			return nil, fmt.Errorf("verify %s: the placeholder of secret %d %w", v.Scheme, i+1, err)
		}
	}
	return middleware.NewVerifier(v.Scheme, secrets...)
}

// Check returns what is wrong, as far as that can be known without the secrets.
func (v *Verify) Check() error {
	_, err := v.Verifier(func(string) (string, error) { return "AAAA", nil }) // which every scheme accepts as a secret
	return err
}

// ReadsBody reports whether a rule that Fill has made reads bodies before it takes a lock.
func (s *Settings) ReadsBody(filled *middleware.Rule, keys middleware.Templates) bool {
	if filled.BufferBody || s.Verify != nil || filled.Remember > 0 {
		return true
	}
	preset, _ := middleware.LookupPreset(s.Preset) // the zero value without one
	for _, text := range []string{cmp.Or(s.Dedupe, preset.Dedupe), cmp.Or(s.Scope, preset.Scope)} {
		if t, err := middleware.ParseTemplate(text, filled.Placeholder); err == nil {
			keys = append(keys, t)
		}
	}
	return slices.ContainsFunc(keys, (*middleware.Template).ReadsBody)
}
