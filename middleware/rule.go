package middleware

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Rule says how requests are serialized. It is only data, which New checks. The zero value of a field stands for the field's default. A
// negative Wait, MastersWait, HoldAfterAbort or Remember means "not at all", even if a preset has a value. The fields' names in JSON, such as
// on_no_quorum, are also their names in Caddy. The first paragraph of each field's comment is a row of the table in docs/configuration.md, which
// go test ./middleware -run TestSettings -update writes anew.
type Rule struct {
	// The key: what is locked, by how many requests at a time, and how the upstream sees it.

	// The templates of the lock keys, such as `order:{path.1:int}`, with placeholders (docs/keys.md#placeholders). Default: the preset's;
	// otherwise required.
	//
	// A request holds all of its keys, at most 16, or none. In JSON a template has the full names of Caddy's placeholders,
	// `order:{http.request.uri.path.1:int}`.
	Keys []string `json:"key,omitempty"`
	// The settings for a sender of webhooks or for an API (docs/presets.md). Default: none.
	//
	// A setting of the rule itself takes precedence.
	Preset string `json:"preset,omitempty"`
	// The name of the rule in logs, metrics and traces. Default: the keys and the preset.
	//
	// It has at most 128 printable bytes, and no secret.
	Name string `json:"name,omitempty"`
	// How many requests hold a key at the same time, in all processes together (docs/recipes.md#at-most-n-at-a-time). Default: 1.
	//
	// 1 to 256: one number for all keys, or one number for each key, in the order of the keys. Each request holds one of this many slots. The
	// upstream gets the slot, from 0 on, in the header `Redlock-Slot`, unless the request has several keys.
	Concurrency Concurrency `json:"concurrency,omitempty"`
	// `refuse` a request that lacks a part of the key, or `pass` it on without a lock. Default: `refuse`.
	//
	// A request with an ID still holds the lock on the ID.
	OnMissingKey string `json:"on_missing_key,omitempty"`
	// The request header in which the upstream gets the fencing token. Default: `Fencing-Token`.
	//
	// The rule removes the header if a client sends it. The header can't be one that has a meaning of its own in HTTP, or from which the key, the ID,
	// the scope or the signature is read.
	FenceHeader string `json:"fence_header,omitempty"`
	// The request header in which the upstream gets the locked values, such as `Redlock-Key` (docs/recipes.md#what-was-locked). Default: none.
	//
	// The header has JSON in ASCII, at most 4 KiB, such as `{"path.1":["42"]}`. Its name has the same limits as `fence_header`.
	KeyHeader string `json:"key_header,omitempty"`

	// Waiting for the lock, and holding it.

	// How long a request waits for its lock. Default: the preset's, or 0.
	//
	// `0`, in Go a negative value, means not at all, even if the preset waits.
	Wait time.Duration `json:"wait,omitempty"`
	// How many requests may wait for one key in this process. Default: 1000.
	//
	// Further requests get 503 at once.
	MaxWaiters int `json:"max_waiters,omitempty"`
	// The status if another request holds the key, 400 to 599. Default: 423.
	HeldStatus int `json:"held_status,omitempty"`
	// How long requests wait for masters when too few answer. Default: 1s.
	//
	// The time begins when this process notices. A request that comes later waits only for the rest of this time. When the time is over, no request waits for masters until they are back. No
	// request waits for longer than `wait`. `0`, in Go a negative value, means not at all.
	MastersWait time.Duration `json:"masters_wait,omitempty"`
	// `refuse` a request if too few masters answer, or `pass` it on without a lock. Default: `refuse`.
	OnNoQuorum string `json:"on_no_quorum,omitempty"`
	// The status if too few masters answer, 400 to 599. Default: 409.
	NoQuorumStatus int `json:"no_quorum_status,omitempty"`
	// How long a key stays locked if the process that holds it dies. Default: 10s, or `max_ttl` if that is less.
	//
	// It is how long the lease lasts, which is renewed while the request runs. The time is at most `max_ttl`, and at least twice `timeout`.
	TTL time.Duration `json:"ttl,omitempty"`
	// The longest time that a request holds its lock. Then the request ends as if the lease were lost. Default: 5m.
	MaxHold time.Duration `json:"max_hold,omitempty"`
	// `run` a request to its end when its client has left, or `cancel` it. Default: `run`.
	//
	// With `run` the upstream's response is still read to its end, up to `max_hold`. `cancel` suits streams without an end. It is an error
	// together with `remember`.
	OnClientAbort string `json:"on_client_abort,omitempty"`
	// How long the key stays locked after a handler has broken off (docs/hosts.md#what-works-on). Default: 0.
	//
	// The upstream may still be at work. A handler has broken off if it returns an error with a status of 499 or more, panics, or answers 502 or 504. The lock is held for at most
	// `max_hold` in all.
	HoldAfterAbort time.Duration `json:"hold_after_abort,omitempty"`

	// Bodies of requests, and responses on their way.

	// How many bytes a body may have if the rule reads it, and how many bytes of a response `buffer_response` may hold. Default: 1 MiB, or
	// the preset's.
	//
	// A rule reads a body for a key, a signature, a fingerprint or `buffer_body`. A longer body is refused with 413. The number is at most `body_budget`. A body that the rule doesn't read has no limit.
	MaxBody int64 `json:"max_body,omitempty"`
	// How long a body may take to arrive, if the rule reads it. Default: 10s.
	//
	// A slower body is refused with 408.
	BodyTimeout time.Duration `json:"body_timeout,omitempty"`
	// The format of the body, `json` or `form`. Default: what the Content-Type says.
	//
	// Amazon's SNS, for example, sends JSON as `text/plain`. Don't set it if the upstream reads the body by the Content-Type.
	BodyFormat string `json:"body_format,omitempty"`
	// Reads the whole body before the lock is taken (docs/hosts.md#slow-clients). Not for bidirectional streams, such as gRPC's. Default: off;
	// on with a preset.
	//
	// A body longer than `max_body` is refused.
	BufferBody *bool `json:"buffer_body,omitempty"`
	// Keeps a response in memory, so that a slow client doesn't hold the key (docs/hosts.md#slow-clients). Default: off; on with a preset.
	//
	// Up to `max_body` bytes wait. A part that the handler flushes is sent at once.
	BufferResponse *bool `json:"buffer_response,omitempty"`
	// How long a response may wait for a slow client. Then the client is cut off. Default: 10s.
	//
	// Each wait for the client may take this long. All waits for one response together may take this long, and a second more for each 16 KiB that the
	// client has taken.
	ResponseTimeout time.Duration `json:"response_timeout,omitempty"`
	// Serves WebSocket requests, which otherwise get 403. Default: off.
	//
	// Requests for other protocols always get 403. A WebSocket request holds the lock as long as its connection lasts, up to `max_hold`.
	AllowUpgrade bool `json:"allow_upgrade,omitempty"`

	// Deliveries: who has sent them, and by which ID a repeat is known.

	// Checks a signature before the lock is taken. The value is the scheme (`stripe`, `github`, `shopify`, `slack`, `adyen` or `standard-webhooks`), and
	// then one or more secrets of one sender. Each sender has its own `verify` (docs/security.md#several-senders). Default: none.
	//
	// `standard-webhooks` accepts the headers of Svix, too. A signature made with any of the secrets is accepted. Give the secrets as
	// `{env.STRIPE_SECRET}` or `{file./run/secrets/stripe}`. A request without a signature is refused with 401. If the sender has a name, as in
	// `verify stripe as acme {file./run/secrets/acme}`, the name is a part of the ID.
	Verify []Verify `json:"verify,omitempty"`
	// How far the time in a signature may be from now. Default: 5m.
	//
	// GitHub, Shopify and Adyen don't sign a time.
	ReplayWindow time.Duration `json:"replay_window,omitempty"`
	// The template of the ID that a delivery and its repeats have, such as `{header.X-GitHub-Delivery}`, or `off`. Default: the preset's, or none.
	//
	// While a request waits or runs, a second one with the same key and ID is refused at once. `off` turns off the preset's template.
	Dedupe string `json:"dedupe,omitempty"`
	// Takes the ID from the header `Idempotency-Key`, in place of `dedupe`: `required`, `optional` or `off`. Default: the preset's, or none.
	//
	// The ID has 1 to 255 printable characters without spaces. With `required`, a request without the header is refused with 400; with
	// `optional`, it is served without an ID. A rule without a key locks the ID alone. `off` turns off the preset's setting.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// The template that identifies the sender, such as `{header.X-API-Key}`, or `off`. Default: the authenticated user, or the preset's.
	//
	// Nobody gets another sender's response. The scope is a part of the ID, and stored hashed. A request with an ID but without a scope is refused with 400, or with 401 if the scope
	// has `{header.Authorization}`. `off` turns off the preset's template.
	Scope string `json:"scope,omitempty"`
	// The name of a site with several hosts (docs/configuration.md#remembered-responses). Default: each host is a site of its own.
	//
	// This name, or without it the host as `{host}` reads it, is a part of the ID. So rules with the same name must have the same users. The name has
	// at most 128 printable bytes.
	Site string `json:"site,omitempty"`
	// `refuse` a repeat with 409 while the first request waits or runs, or let it `wait` for the first one's response. Default: `refuse`.
	//
	// A repeat waits for at most `wait`. If the response isn't remembered, one of the waiting repeats is served. `wait` needs `remember` and a
	// wait above 0.
	OnDuplicate string `json:"on_duplicate,omitempty"`

	// Remembered responses.

	// How long the final response to a delivery is remembered (docs/configuration.md#remembered-responses). Default: the preset's, or off.
	//
	// The shortest time is 1s. A response of 4xx is remembered for an hour at most. `off`, in Go a negative value, means not at all, even if the
	// preset remembers responses.
	Remember time.Duration `json:"remember,omitempty"`
	// How many bytes the body of a remembered response may have. Default: 64 KiB.
	//
	// At most 960 KiB. A response with a longer body is remembered without it.
	RememberSize int64 `json:"remember_size,omitempty"`
	// How many bytes of each master one process may use for this rule's remembered responses. Default: 1 GiB.
	//
	// The number is less than 2 GiB. Further responses are not remembered. An eighth is only for responses of 4xx, which get no more than that. No
	// scope takes more than three times as much as it leaves free for others.
	RememberQuota int64 `json:"remember_quota,omitempty"`
	// Which statuses are final: numbers from 200 to 499, or `2xx`, `3xx`, `4xx`. Default: the preset's, or all but 401, 403, 408, 409, 423, 425
	// and 429.
	//
	// With a preset for webhooks it is `2xx`. A 206, 304, 412 or 416 to a request with `Range` or a condition (`If-…`) is never final.
	RememberStatus []string `json:"remember_status,omitempty"`
	// Refuses, with 422, a different request that has a remembered ID. Default: on; off with a preset for webhooks.
	//
	// The method, path, query, body and, with `idempotency_key`, the keys are compared. If it is off, the method, path and query are a part of
	// the ID, because a sender may deliver one event to several places.
	Fingerprint *bool `json:"fingerprint,omitempty"`

	// For operators.

	// Takes no lock and refuses nothing (docs/problems.md#dry_run). Default: off.
	//
	// `{http.redlock.outcome}` is the outcome that a request would have had.
	DryRun bool `json:"dry_run,omitempty"`
	// Shows operators which client holds a key or waits for it. This is personal data. Default: off.
	//
	// Operators of any machine see the authenticated user (User) and the address (ClientAddress).
	ShowClient bool `json:"show_client,omitempty"`

	// What only a program can set.

	// Logger gets lines about refused requests (for each outcome, one line in 10 s at most), and about locks that were not released in order. Keys
	// are never logged. A slow Logger delays requests; the Locker's Logger doesn't. Default: with New the Locker's, otherwise none.
	Logger *slog.Logger `json:"-"`
	// Observer gets the outcomes of the requests, under the rule's name. Default: none.
	Observer Observer `json:"-"`
	// Shutdown ends when the server is about to stop. Requests that wait are refused with 503 then, and requests that hold their locks run on.
	// Without Shutdown, the server's own Shutdown waits until all waiting requests were served. Caddy's module sets it. Default: never.
	//
	//	stopping, stop := context.WithCancel(context.Background())
	//	server.RegisterOnShutdown(stop)
	Shutdown context.Context `json:"-"`
	// User returns the authenticated user, such as a JWT's subject, or "" if there is none. The user is the scope of a rule that sets none,
	// because the user stays the same when a client has a new token. In Caddy it is `{http.auth.user.id}`. Default: nobody.
	User func(*http.Request) string `json:"-"`
	// Sealer encrypts the responses on the masters. All processes of the rule must have its keys: a request whose response can't be read is
	// refused with 500, because it must not run again. In Caddy set `remember_keys`. Default: none, so the masters can read the responses.
	Sealer *Sealer `json:"-"`
	// ClientAddress returns the address of a request's client, IP or IP:port, which bounds the client's share of the body budget. Behind a
	// proxy it should return the address that the proxy reports. In Caddy `trusted_proxies` determines it. Default: the request's `RemoteAddr`.
	ClientAddress func(*http.Request) string `json:"-"`
	// OriginalURL returns the URL for which the client has asked, and which the fingerprint contains. In Caddy it is the URL before
	// `handle_path` and `rewrite`. Default: the request's `RequestURI`.
	OriginalURL func(*http.Request) *url.URL `json:"-"`
	// BodyBudget bounds the memory for bodies and responses that wait; rules may share one. In Caddy it is the `body_budget`.
	// Default: a budget of 64 MiB for all rules without their own.
	BodyBudget *Budget `json:"-"`
	// Finished reports whether all work has surely ended after an error of the handler, so that HoldAfterAbort isn't needed. Default: work may
	// go on after any error.
	Finished func(error) bool `json:"-"`
	// OnReplay is called before a request gets the remembered response. Default: none.
	OnReplay func(*http.Request, Turn) `json:"-"`
	// OnHold is called when HoldAfterAbort begins to hold the keys of a request that has ended. The function that it returns is called when the
	// keys are free. A Locker that is closed meanwhile frees them; a reload of Caddy doesn't. Default: none.
	OnHold func() (free func()) `json:"-"`
}

// Verify says how the signatures of one sender of webhooks are checked. They are checked before the lock is taken, so that nobody without a secret
// can hold a key.
type Verify struct {
	// The provider that signs, which determines how the signature is checked: stripe, github, shopify, slack, standard-webhooks or adyen.
	Scheme string `json:"scheme,omitempty"`
	// The sender, such as a tenant: at most 128 printable bytes. The name, and not a secret, is a part of the ID of the sender's deliveries. All
	// senders of a rule except one must have a name.
	Name string `json:"name,omitempty"`
	// The secrets, in Caddy best given as placeholders: {env.STRIPE_SECRET} or {file./run/secrets/stripe}. A signature made with any of the secrets
	// is accepted, so that secrets can be rotated.
	Secrets []string `json:"secrets,omitempty"`
}

// String returns the name of the Verify for errors. It contains no secret.
func (v Verify) String() string {
	if v.Name == "" {
		return "verify " + v.Scheme
	}
	return "verify " + v.Scheme + " as " + v.Name
}

// The values of settings that aren't the default.
const (
	Pass   = "pass"   // for OnMissingKey and OnNoQuorum: the request is served without a lock
	Cancel = "cancel" // for OnClientAbort: the request ends when its client leaves

	off      = "off"
	waits    = "wait"
	required = "required"
	optional = "optional"
)

// The defaults of a rule.
const (
	DefaultMaxHold     = 5 * time.Minute // how long a request may hold its lock
	DefaultMastersWait = time.Second     // how long a request waits for masters

	// DefaultResponseTimeout is the ResponseTimeout of a rule that sets none.
	DefaultResponseTimeout = 10 * time.Second

	defaultReplayWindow = 5 * time.Minute
)

// The limits of remembered responses.
const (
	// DefaultRememberSize is the RememberSize of a rule that sets none.
	DefaultRememberSize = 64 << 10
	// MaxRememberSize is the largest RememberSize. It is less than redlock.MaxResult, because the headers need room, too.
	MaxRememberSize = redlock.MaxResult - remember.HeaderRoom
	// DefaultRememberQuota is the RememberQuota of a rule that sets none.
	DefaultRememberQuota = 1 << 30
	// DefaultResponseBudget is how many bytes of memory all responses together may use while they are recorded, stored or replayed.
	DefaultResponseBudget = remember.MemorySize
)

// Sealer encrypts remembered responses, so that the masters can't read them.
type Sealer struct{ sealer *remember.Sealer }

// NewSealer returns a Sealer with AES-256-GCM. Each key has 32 bytes. The first key encrypts, and all keys decrypt, so that a key can be
// replaced: first add the new key everywhere as the second, then make it the first, and remove the old key when the last response
// that it has encrypted is forgotten. The errors of NewSealer don't contain the keys.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	sealer, err := remember.NewSealer(keys...)
	if err != nil {
		return nil, err
	}
	return &Sealer{sealer}, nil
}

func (rule Rule) name() string {
	return cmp.Or(rule.Name, defaultName(rule.Keys, rule.Preset), IdempotencyHeader)
}

// setPreset copies the settings of the preset that the rule itself doesn't set. If the rule sets IdempotencyKey or Dedupe, the preset's ID isn't
// used, because a request has at most one ID.
func (rule *Rule) setPreset(preset parts.Preset) {
	if len(rule.Keys) == 0 && preset.Key != "" {
		rule.Keys = []string{preset.Key}
	}
	if rule.IdempotencyKey == "" && preset.IdempotencyKey && (rule.Dedupe == "" || rule.Dedupe == off) {
		rule.IdempotencyKey = required
	}
	if !rule.identifiesByHeader() {
		rule.Dedupe = cmp.Or(rule.Dedupe, preset.Dedupe)
	}
	if rule.hasID() { // otherwise the rule has turned the preset's ID off, and the scope is only for IDs
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
	if rule.BufferResponse == nil {
		rule.BufferResponse = new(rule.Preset != "")
	}
	rule.Wait = max(cmp.Or(rule.Wait, preset.Wait), 0)
	rule.HeldStatus = cmp.Or(rule.HeldStatus, preset.HeldStatus)
	rule.HoldAfterAbort = max(rule.HoldAfterAbort, 0)
	rule.MaxBody = cmp.Or(rule.MaxBody, preset.MaxBody)
	rule.Remember = max(cmp.Or(rule.Remember, preset.Remember), 0)
}

func (rule *Rule) setDefaults() {
	rule.MaxHold = cmp.Or(rule.MaxHold, DefaultMaxHold)
	rule.MastersWait = max(cmp.Or(rule.MastersWait, DefaultMastersWait), 0)
	if len(rule.Concurrency) == 0 {
		rule.Concurrency = Concurrency{1}
	}
	rule.FenceHeader = cmp.Or(rule.FenceHeader, DefaultFenceHeader)
	rule.HeldStatus = cmp.Or(rule.HeldStatus, outcomes[OutcomeHeld].status)
	rule.NoQuorumStatus = cmp.Or(rule.NoQuorumStatus, outcomes[OutcomeNoQuorum].status)
	rule.OnMissingKey = cmp.Or(rule.OnMissingKey, "refuse")
	rule.OnNoQuorum = cmp.Or(rule.OnNoQuorum, "refuse")
	rule.OnDuplicate = cmp.Or(rule.OnDuplicate, "refuse")
	rule.OnClientAbort = cmp.Or(rule.OnClientAbort, "run")
	rule.MaxBody = cmp.Or(rule.MaxBody, DefaultMaxBody)
	rule.BodyTimeout = cmp.Or(rule.BodyTimeout, DefaultBodyTimeout)
	rule.ResponseTimeout = cmp.Or(rule.ResponseTimeout, DefaultResponseTimeout)
	rule.BodyBudget = cmp.Or(rule.BodyBudget, defaultBudget)
	rule.ReplayWindow = cmp.Or(rule.ReplayWindow, defaultReplayWindow)
	rule.RememberSize = cmp.Or(rule.RememberSize, DefaultRememberSize)
	rule.RememberQuota = cmp.Or(rule.RememberQuota, DefaultRememberQuota)
	rule.Logger = cmp.Or(rule.Logger, slog.New(slog.DiscardHandler))
}

func (rule *Rule) identifiesByHeader() bool {
	return rule.IdempotencyKey == required || rule.IdempotencyKey == optional
}

func (rule *Rule) hasID() bool {
	return rule.identifiesByHeader() || rule.Dedupe != "" && rule.Dedupe != off
}

// hasScope reports whether a scope distinguishes equal IDs of different senders.
func (rule *Rule) hasScope() bool { return rule.Scope != "" && rule.Scope != off }

func (rule *Rule) runsToEnd() bool { return rule.OnClientAbort != Cancel }

func (rule Rule) withKey(template string) Rule {
	if template != "" {
		rule.Keys = append([]string{template}, rule.Keys...)
	}
	return rule
}

// of returns the rule with the settings that it takes from the Locker. It panics if the rule can't be used with this Locker.
func (rule Rule) of(locker *redlock.Locker) Rule {
	if locker == nil {
		panic("middleware: the Locker is nil: did the call that made it return an error?")
	}
	if rule.TTL > 0 {
		if err := inside.CheckTTL(locker, rule.TTL); err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
	}
	own := inside.Of(locker)
	rule.MaxHold = cmp.Or(rule.MaxHold, own.MaxHold)
	rule.Logger = cmp.Or(rule.Logger, own.Logger)
	return rule
}

// checkNeeds returns an error if a setting for remembered responses is given, but no responses are remembered.
func (rule *Rule) checkNeeds(remembers bool) error {
	for _, setting := range []struct {
		name  string
		given bool
	}{{"remember_size", rule.RememberSize != 0}, {"remember_quota", rule.RememberQuota != 0}, {"remember_status", rule.RememberStatus != nil}, {"fingerprint", rule.Fingerprint != nil}} {
		if setting.given && !remembers {
			return fmt.Errorf("%s needs remember, as nothing is remembered without it", setting.name)
		}
	}
	return nil
}

// placeholder is the function placeholder, except that it refuses the FenceHeader, the KeyHeader and the SlotHeader of the rule. The rule removes
// these headers from each request before it reads anything.
func (rule *Rule) placeholder(name string) (KeyFunc, error) {
	if header, ok := strings.CutPrefix(name, "header."); ok {
		switch {
		case fold.SameHeader(header, cmp.Or(rule.FenceHeader, DefaultFenceHeader)):
			return nil, errors.New("this is the fence_header, which is removed from each request; read another header, or choose another fence_header")
		case fold.SameHeader(header, SlotHeader):
			return nil, errors.New("this is the header of the slot, which is removed from each request; read another header")
		case fold.SameHeader(header, rule.KeyHeader):
			return nil, errors.New("this is the key_header, which is removed from each request; read another header, or choose another key_header")
		}
	}
	return placeholder(name)
}

func (rule *Rule) scopeIsAuthorization() bool {
	return strings.Contains(strings.ToLower(rule.Scope), "header.authorization")
}

// Concurrency is how many requests may hold a key at the same time: one number for all templates of a rule, or one number for each template, in the
// order of the templates. In JSON a single number needs no list.
type Concurrency []int

// UnmarshalJSON reads a number or a list of numbers.
func (c *Concurrency) UnmarshalJSON(text []byte) error {
	var n int
	if json.Unmarshal(text, &n) == nil {
		*c = Concurrency{n}
		return nil
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		return fmt.Errorf("concurrency %s: must be from 1 to %d, or a list of such numbers", text, redlock.MaxConcurrency)
	}
	return json.Unmarshal(text, (*[]int)(c))
}

// MarshalJSON writes a single number without a list.
func (c Concurrency) MarshalJSON() ([]byte, error) {
	if len(c) == 1 {
		return json.Marshal(c[0])
	}
	return json.Marshal([]int(c))
}

func (c Concurrency) of(key int) int { return c[min(key, len(c)-1)] }

// byKey returns how many requests may hold each key, by the name of its lock. from has the index of each key's template. If two templates make keys
// with the same lock, the smaller number counts.
func (c Concurrency) byKey(keys []string, from []int) map[string]int {
	most := make(map[string]int, len(keys))
	for i, key := range keys {
		n := c[from[i]]
		lock := lockname.Of(key)
		if other, known := most[lock]; known {
			n = min(n, other)
		}
		most[lock] = n
	}
	return most
}

func (c Concurrency) check(keys int) error {
	if len(c) != 1 && len(c) != keys {
		return fmt.Errorf("concurrency: %d numbers and %d keys: want one for all, or one for each", len(c), keys)
	}
	for _, n := range c {
		if n < 1 || n > redlock.MaxConcurrency {
			return fmt.Errorf("concurrency %d: must be from 1 to %d", n, redlock.MaxConcurrency)
		}
	}
	return nil
}
