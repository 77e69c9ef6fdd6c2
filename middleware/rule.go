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

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Rule says how requests are serialized. It is data: New and Compile check it, and make of it what serves requests. The zero value
// of each field is its default; negative durations are "not at all", even if a preset has a value. The names of a configuration,
// such as on_no_quorum, are those of JSON and of Caddy. The first paragraphs of the fields' comments are the rows of the table in
// docs/configuration.md: go test ./middleware -run TestSettings -update writes it anew.
type Rule struct {
	// The templates of the lock keys, such as `order:{path.1:int}`, with placeholders (docs/keys.md#placeholders). Default: the preset's;
	// otherwise required.
	//
	// A request holds all of them, at most 16, or none. In JSON a template has the full names of Caddy's placeholders,
	// `order:{http.request.uri.path.1:int}`.
	Keys []string `json:"key,omitempty"`
	// What logs, metrics and traces call the rule. Default: the keys and the preset.
	//
	// It has at most 128 printable bytes, and no secret.
	Name string `json:"name,omitempty"`
	// The settings recommended for a sender of webhooks or for an API (docs/presets.md). Default: none.
	//
	// A setting of the rule itself takes precedence.
	Preset string `json:"preset,omitempty"`
	// How long a request waits for its lock. Default: the preset's, or 0.
	//
	// `0`, in Go a negative value, means not at all, even if the preset waits.
	Wait time.Duration `json:"wait,omitempty"`
	// How long a request waits for masters, from when this process knows that too few of them answer. Default: 1s.
	//
	// Also if that was before the request: then it doesn't wait for them, until they are back. At most the wait. `0`, in Go a negative value, means
	// not at all.
	MastersWait time.Duration `json:"masters_wait,omitempty"`
	// How long the lease lasts, and so how long a key stays locked after its process has died. Default: 10s, or `max_ttl` if that is less.
	//
	// It is renewed while the request runs. It is at most `max_ttl`, and at least twice `timeout`.
	TTL time.Duration `json:"ttl,omitempty"`
	// The longest time that a request holds its lock. Then it ends as if the lease were lost. Default: 5m.
	MaxHold time.Duration `json:"max_hold,omitempty"`
	// How many requests may wait for one key in this process. Default: 1000.
	//
	// More are refused at once.
	MaxWaiters int `json:"max_waiters,omitempty"`
	// How many requests hold a key at the same time, in all processes together (docs/recipes.md#at-most-n-at-a-time). Default: 1.
	//
	// 1 to 256: one number for all keys, or one for each, in their order. Each request has one of so many slots, which the upstream finds in the
	// header `Redlock-Slot`, from 0 on, unless the request has several keys.
	Concurrency Concurrency `json:"concurrency,omitempty"`
	// The request header with the fencing token. Default: `Fencing-Token`.
	//
	// What a client sends under that name is removed. It can't be a header with a meaning of its own, or one that the key, the ID, the scope or
	// the signature is read from.
	FenceHeader string `json:"fence_header,omitempty"`
	// The request header that says what was locked, such as `Redlock-Key` (docs/recipes.md#what-was-locked). Default: none.
	//
	// It has JSON in ASCII, at most 4 KiB, such as `{"path.1":["42"]}`. Its name has the limits of `fence_header`.
	KeyHeader string `json:"key_header,omitempty"`
	// The status if another request holds the key, 400 to 599. Default: 423.
	HeldStatus int `json:"held_status,omitempty"`
	// The status if too few masters answer, 400 to 599. Default: 409.
	NoQuorumStatus int `json:"no_quorum_status,omitempty"`
	// `refuse` a request that lacks a part of the key, or `pass` it on without a lock. Default: `refuse`.
	//
	// A request with an ID that is passed on holds the lock on its ID.
	OnMissingKey string `json:"on_missing_key,omitempty"`
	// `refuse` a request if too few masters answer, or `pass` it on without a lock. Default: `refuse`.
	OnNoQuorum string `json:"on_no_quorum,omitempty"`

	// How many bytes of a body are read for a key, a signature or `buffer_body`, and of a response wait with `buffer_response`. Default: 1 MiB,
	// or the preset's.
	//
	// A longer body is refused with 413. At most the `body_budget`. Bodies that are not needed have no limit.
	MaxBody int64 `json:"max_body,omitempty"`
	// How long such a body may take to arrive. Default: 10s.
	//
	// A slower one is refused with 408.
	BodyTimeout time.Duration `json:"body_timeout,omitempty"`
	// The format of the body, `json` or `form`, whatever its Content-Type says. Default: what the Content-Type says.
	//
	// Amazon's SNS sends JSON as `text/plain`. It is not for upstreams that read the body by the Content-Type.
	BodyFormat string `json:"body_format,omitempty"`
	// Reads the whole body before the lock is taken (docs/hosts.md#slow-clients). Not for bidirectional streams, such as gRPC's. Default: off;
	// with a preset on.
	//
	// Up to `max_body`; a longer body is refused.
	BufferBody *bool `json:"buffer_body,omitempty"`
	// Lets a response wait for its client when the lock is free (docs/hosts.md#slow-clients). Default: off; with a preset on.
	//
	// Up to `max_body`. What is flushed is sent at once.
	BufferResponse *bool `json:"buffer_response,omitempty"`
	// How long a client may keep its response waiting before it is cut off. Default: 10s.
	//
	// At once, or in all and with a second more for each 16 KiB that the client has taken.
	ResponseTimeout time.Duration `json:"response_timeout,omitempty"`
	// The signature that is checked before the lock is taken: the scheme `stripe`, `github`, `shopify`, `slack`, `adyen` or `standard-webhooks`,
	// and one or more secrets of one sender. Each other sender has a `verify` of its own (docs/security.md#several-senders). Default: none.
	//
	// `standard-webhooks` includes the headers of Svix. The secrets are those of one sender, any of which may have signed; best they are
	// `{env.STRIPE_SECRET}` or `{file./run/secrets/stripe}`. A request without a signature is refused with
	// 401. The name of the sender, if it has one, is a part of the ID: `verify stripe as acme {file./run/secrets/acme}`.
	Verify []Verify `json:"verify,omitempty"`
	// How far the time in a signature may be from now. Default: 5m.
	//
	// GitHub, Shopify and Adyen don't sign a time.
	ReplayWindow time.Duration `json:"replay_window,omitempty"`
	// The template of the ID that the sender gives a delivery, such as `{header.X-GitHub-Delivery}`, or `off`. Default: the preset's, or none.
	//
	// While a request with the same key and ID waits or runs, another one is refused at once. `off` turns off the preset's.
	Dedupe string `json:"dedupe,omitempty"`
	// Takes the ID from the header `Idempotency-Key`, in place of `dedupe`: `required`, `optional` or `off`. Default: the preset's, or none.
	//
	// It has 1 to 255 printable characters without spaces. A request without it is refused with 400 if it is `required`, and not compared if it
	// is `optional`. A rule without a key locks the ID alone. `off` turns off the preset's.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// The template that identifies the sender, such as `{header.X-API-Key}`, so that nobody gets another sender's response; or `off`.
	// Default: the authenticated user, or the preset's.
	//
	// It is a part of the ID, and stored hashed. A request with an ID and without a scope is refused with 400. `off` turns off the preset's.
	Scope string `json:"scope,omitempty"`
	// The name of hosts that are one site, such as `www.` and the apex, or a failover: then a repeat may come to another of them. Default: none,
	// each host is a site of its own.
	//
	// The host as `{host}` reads it, or this name in its place, is a part of the ID. So rules with one name must have the same users. It has at
	// most 128 printable bytes.
	Site string `json:"site,omitempty"`
	// How long the final response to a delivery is remembered (docs/configuration.md#remembered-responses). Default: the preset's, or off.
	//
	// At least 1s. A response of 4xx is remembered for an hour at most. `off`, in Go a negative value, means not at all, even if the preset
	// remembers.
	Remember time.Duration `json:"remember,omitempty"`
	// How many bytes the body of such a response may have, at most 960 KiB. Default: 64 KiB.
	RememberSize int64 `json:"remember_size,omitempty"`
	// How many bytes the responses that this process has stored take on each master (docs/operations.md#responses-that-are-not-remembered).
	// Default: 1 GiB.
	//
	// Less than 2 GiB; further responses are not remembered. An eighth is for responses of 4xx alone, and no scope takes more than three times
	// what it leaves.
	RememberQuota int64 `json:"remember_quota,omitempty"`
	// Which statuses are final: numbers from 200 to 499, or `2xx`, `3xx`, `4xx`. Default: the preset's, or all but 401, 403, 408, 409, 423, 425
	// and 429.
	//
	// With a preset for webhooks it is `2xx`. A part (206) or a 304 is repeated as it is.
	RememberStatus []string `json:"remember_status,omitempty"`
	// Refuses a remembered ID with 422 if it comes with a different request. Default: on; with a preset for webhooks off.
	//
	// Method, path, query, body and, with `idempotency_key`, the keys are compared. With off, method, path and query are a part of the ID,
	// because a sender may deliver one event to several places.
	Fingerprint *bool `json:"fingerprint,omitempty"`
	// `refuse` a repeat with 409 while the first request waits or runs, or let it `wait` for the first one's response. Default: `refuse`.
	//
	// It waits within the rule's wait; if the response is not remembered, one of those that wait runs. Needs `remember` and a wait.
	OnDuplicate string `json:"on_duplicate,omitempty"`

	// Serves requests for WebSocket, which are otherwise refused with 403, as are those for any other protocol. Default: off.
	//
	// They hold the lock as long as their connection lasts, up to `max_hold`.
	AllowUpgrade bool `json:"allow_upgrade,omitempty"`
	// `run` a request to its end when its client has left, or `cancel` it. Default: `run`.
	//
	// The upstream's response is still read to its end, up to `max_hold`. `cancel` suits streams without end, and is an error with `remember`.
	OnClientAbort string `json:"on_client_abort,omitempty"`
	// How long the key stays locked after a handler has broken off, because the upstream may work on (docs/hosts.md#what-works-on). Default: 0.
	//
	// Up to `max_hold`, after an error of 499 or more, a panic, 502 or 504.
	HoldAfterAbort time.Duration `json:"hold_after_abort,omitempty"`
	// Takes no lock and refuses nothing (docs/problems.md#dry_run). Default: off.
	//
	// `{http.redlock.outcome}` says what would have happened.
	DryRun bool `json:"dry_run,omitempty"`
	// Shows operators who has sent a request that holds a key or waits for it (docs/commands.md#inspect). It is personal data. Default: off.
	//
	// On any machine: whom authentication has found (User), and the address (ClientAddress).
	ShowClient bool `json:"show_client,omitempty"`

	// BodyBudget bounds the memory for bodies and responses that wait; rules may share one. In Caddy it is that of `body_budget`.
	// Default: one of 64 MiB for all rules without their own.
	BodyBudget *Budget `json:"-"`
	// ClientAddress returns the address of a request's client, IP or IP:port, which bounds its share of the body budget. Behind a proxy it
	// should be what the proxy reports. In Caddy it is what `trusted_proxies` determines. Default: the request's `RemoteAddr`.
	ClientAddress func(*http.Request) string `json:"-"`
	// OriginalURL returns the URL that the client has asked for, which the fingerprint has. In Caddy it is the one before `handle_path`
	// and `rewrite`. Default: the request's `RequestURI`.
	OriginalURL func(*http.Request) *url.URL `json:"-"`
	// OnReplay is called before a request is answered with the remembered response. Default: none.
	OnReplay func(*http.Request, Turn) `json:"-"`
	// OnHold is called when HoldAfterAbort begins to hold the keys of a request that has ended, and what it returns when they are free: a
	// Locker that is closed meanwhile frees them. In Caddy a reload doesn't. Default: none.
	OnHold func() (free func()) `json:"-"`
	// User returns whom authentication has found, such as a JWT's subject, or "" for nobody: the scope of a rule that sets none, as it
	// stays when a client has a new token. In Caddy it is `{http.auth.user.id}`. Default: nobody.
	User func(*http.Request) string `json:"-"`
	// Sealer encrypts the responses on the masters. All processes of the rule must have its keys: a response that can't be read is refused
	// with 500, because the request must not run again. In Caddy `remember_keys` does. Default: none, the masters can read them.
	Sealer *Sealer `json:"-"`
	// Finished reports whether no work can go on after an error of the handler, so that HoldAfterAbort is not needed. Default: work may go
	// on after any error.
	Finished func(error) bool `json:"-"`
	// Shutdown ends when the server is about to stop: requests that wait are then refused with 503, and those that hold their locks run on.
	// Without it the server's Shutdown waits until the whole line has been served. Caddy's module sets it. Default: never.
	//
	//	stopping, stop := context.WithCancel(context.Background())
	//	server.RegisterOnShutdown(stop)
	Shutdown context.Context `json:"-"`
	// Observer is told what becomes of the requests, under the rule's name. Default: none.
	Observer Observer `json:"-"`
	// Logger gets a line for refused requests, every 10 s at most for each outcome, and for locks that were not released in order. Keys
	// are never logged. A request waits for it, unless it is the default. Default: with New the Locker's, otherwise none.
	Logger *slog.Logger `json:"-"`
}

// Verify says how the signatures of one sender of webhooks are checked, before the lock is taken, so that nobody without a secret can hold
// a key.
type Verify struct {
	// The provider that signs, which determines how: stripe, github, shopify, slack, standard-webhooks or adyen.
	Scheme string `json:"scheme,omitempty"`
	// Who the sender is, such as a tenant: at most 128 printable bytes. It is a part of the ID of the sender's deliveries, which its secrets
	// are not. All senders of a rule but one must have a name.
	Name string `json:"name,omitempty"`
	// The secrets, in Caddy best as placeholders: {env.STRIPE_SECRET} or {file./run/secrets/stripe}. A
	// signature made with any one of them is accepted, so that secrets can be rotated.
	Secrets []string `json:"secrets,omitempty"`
}

// String returns what the Verify is called in errors, without its secrets.
func (v Verify) String() string {
	if v.Name == "" {
		return "verify " + v.Scheme
	}
	return "verify " + v.Scheme + " as " + v.Name
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
	DefaultMaxHold     = 5 * time.Minute // how long a request may hold its lock
	DefaultMastersWait = time.Second     // how long it waits for masters

	// DefaultResponseTimeout is how long a client may keep a response waiting unless something else is set.
	DefaultResponseTimeout = 10 * time.Second

	defaultReplayWindow = 5 * time.Minute
)

// What is remembered.
const (
	// DefaultRememberSize is how many bytes a body may have that is remembered, unless something else is set.
	DefaultRememberSize = 64 << 10
	// MaxRememberSize is how many bytes that can be: headers need some of what a master remembers for a lock.
	MaxRememberSize = redlock.MaxResult - remember.HeaderRoom
	// DefaultRememberQuota is how many bytes of each master the responses of a rule may take that one process has stored.
	DefaultRememberQuota = 1 << 30
	// DefaultResponseBudget is how many bytes the responses may take in memory at once that are being recorded, stored and replayed.
	DefaultResponseBudget = remember.MemorySize
)

// Sealer encrypts the responses that are remembered, so that the masters can't read them.
type Sealer struct{ sealer *remember.Sealer }

// NewSealer returns a Sealer with AES-256-GCM. Each key has 32 bytes; the first encrypts, and all decrypt, so that a key can be
// replaced: first add the new one everywhere as the second, then make it the first, and remove the old one when the last response
// that it has encrypted is forgotten. Its errors don't show the keys.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	sealer, err := remember.NewSealer(keys...)
	if err != nil {
		return nil, err
	}
	return &Sealer{sealer}, nil
}

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

// withKey returns the rule with one more template.
func (rule Rule) withKey(template string) Rule {
	if template != "" {
		rule.Keys = append([]string{template}, rule.Keys...)
	}
	return rule
}

// of returns the rule with what it takes from the Locker. It panics if it can't be used with it.
func (rule Rule) of(locker *redlock.Locker) Rule {
	if locker == nil {
		panic("middleware: the Locker is nil: did the call that made it return an error?")
	}
	if rule.TTL > 0 {
		if err := locker.Check(redlock.WithTTL(rule.TTL)); err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
	}
	rule.MaxHold = cmp.Or(rule.MaxHold, locker.MaxHold())
	rule.Logger = cmp.Or(rule.Logger, locker.Logger())
	return rule
}

// checkNeeds returns an error if a setting of responses that are remembered is given, and none are.
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

// Placeholder is the function Placeholder for the templates of a rule: it refuses the FenceHeader, the KeyHeader and the SlotHeader, which are
// removed from each request before anything is read from it.
func (rule *Rule) Placeholder(name string) (KeyFunc, error) {
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
	return Placeholder(name)
}

func (rule *Rule) scopeIsAuthorization() bool {
	return strings.Contains(strings.ToLower(rule.Scope), "header.authorization")
}

// Concurrency is how many requests may hold a key at the same time: one number for all keys of a rule, or one for each in their order.
// In JSON one number needs no list.
type Concurrency []int

// UnmarshalJSON reads a number or a list of such.
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

// MarshalJSON writes what UnmarshalJSON reads.
func (c Concurrency) MarshalJSON() ([]byte, error) {
	if len(c) == 1 {
		return json.Marshal(c[0])
	}
	return json.Marshal([]int(c))
}

// of returns the number for the key in this place.
func (c Concurrency) of(key int) int { return c[min(key, len(c)-1)] }

// byKey returns the numbers of keys, each of which comes from the one in a place. Where two make one key, the smaller number holds.
func (c Concurrency) byKey(keys []string, from []int) map[string]int {
	most := make(map[string]int, len(keys))
	for i, key := range keys {
		n := c[from[i]]
		if other, known := most[key]; known {
			n = min(n, other)
		}
		most[key] = n
	}
	return most
}

// Check returns an error unless there is one number, or one for each of so many keys, and each may be.
func (c Concurrency) Check(keys int) error {
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
