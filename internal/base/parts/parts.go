// Package parts hands unexported parts of package middleware to package internal/engine. Nothing else uses it.
package parts

import (
	"context"
	"net/http"
	"time"
)

// Middleware is the Parts of package middleware, which sets it.
var Middleware any

// Parts has functions of package middleware. They are explained in package internal/engine. The type parameters are types of packages middleware and
// redlock, which import this package.
type Parts[Rule, KeyFunc, Turn, Outcome, Reason, Budget, Locker, Lock any] struct {
	Compile func(rule Rule, placeholder func(rule *Rule, name string) (KeyFunc, error)) (Serializer[Rule, Locker], error)
	Name    func(Rule) string

	Placeholder   func(name string) (KeyFunc, error)
	PlaceholderOf func(rule *Rule, name string) (KeyFunc, error)
	ParseTemplate func(text string, placeholder func(name string) (KeyFunc, error)) (Template, error)

	RefusalOf  func(ctx context.Context, err error) Refusal[Turn]
	NewUnruled func(rule Rule, possible ...Outcome) Unruled[Outcome, Lock]
	Guard      func(Rule) func(r *http.Request, matters func(*http.Request) bool) Refusal[Turn]
	Require    func(Rule, Requirement) (Required[Turn], error)

	MayChange  func(*http.Request) bool
	Mentions   func(r *http.Request, word string) bool
	StripRoute func(*http.Request)

	Presets  func() []string
	Preset   func(sender string) (Preset, error)
	Outcomes func() []Outcome
	Reasons  func() []Reason

	Now func(Turn) Turn

	CheckConcurrency func(numbers []int, keys int) error

	Usage func(*Budget) (used, size int64)
}

// Serializer serves requests by a rule.
type Serializer[Rule, Locker any] interface {
	// Rule returns the rule as given, with the settings of its preset and the defaults filled in.
	Rule() Rule
	// Serve takes the lock of a request, calls next, and releases the lock when next has returned or panicked, even if the client has left. The
	// context of next's request ends when the lease is lost. If the response to the request is remembered, Serve writes that response, and doesn't
	// call next.
	//
	// The error is a Refusal if the request isn't served; then Serve has written nothing. Otherwise it is the error of next. After a refusal the body
	// can still be read until the request's context ends, unless the client has stopped sending it.
	Serve(locker *Locker, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error
	// Explain returns what Serve would do with a request. It reads the body if Serve would.
	Explain(r *http.Request) Explanation
	// ReadsBody reports whether bodies are read before a lock is taken.
	ReadsBody() bool
	// NeedsBody reports whether the rule refuses each request without a body, because a key or an ID is read only there. It is false for webhooks, of
	// which the rule verifies the sender or has its preset: a rule for them is meant to refuse other requests.
	NeedsBody() bool
	// Global returns the first template that makes the same key for all requests, if only one request may hold that key at a time; or "". Such a
	// template is nearly always a mistake.
	Global() string
	// Warnings returns warnings about settings for remembered responses that are valid, but nearly always a mistake.
	Warnings() []string
	// UpstreamHeaders returns the headers that the rule may set for its upstream.
	UpstreamHeaders() []string
}

// Template is a key template.
type Template interface {
	// Key returns the lock key of a request, for a template that makes only one key.
	Key(*http.Request) (string, error)
	// Keys returns the lock keys of a request: several if the template has a placeholder with [] or &. For JSON that can also be read as a form, it
	// returns the keys of both readings, because some frameworks ignore the Content-Type.
	Keys(*http.Request) ([]string, error)
	// WithoutKind returns the names of the placeholders that accept any text from a client.
	WithoutKind() []string
}

// Explanation says what a rule would do with a request.
type Explanation interface {
	// String returns the explanation as text for people, with one fact on each line. It contains the keys.
	String() string
	// Brief returns the keys, or why the request gets no lock, in one line.
	Brief() string
	// Refused reports whether the request is refused before it asks for its lock.
	Refused() bool
}

// Refusal is the error for a request that isn't served, or that lost its lease before any response was written. It wraps the error that has caused it.
type Refusal[Turn any] interface {
	error
	// Status returns the HTTP status of the response.
	Status() int
	Turn() Turn
	// SetHeaders sets the headers of the response: Retry-After in seconds, Redlock-Outcome, which distinguishes one 409 from another, and
	// Cache-Control. It removes headers with which the handler has described a different body.
	SetHeaders(http.Header)
	// Write sends the refusal as application/problem+json; docs/problems.md explains the types.
	Write(http.ResponseWriter)
}

// Unruled logs and counts requests for which a handler calls a Locker itself.
type Unruled[Outcome, Lock any] interface {
	// Waits counts a request that waits for its lock, until over is called.
	Waits() (over func())
	// Refused logs and counts a request that gets no lock. The log has the detail, and err if the server is to blame. Neither may contain a key or a
	// value of the request.
	Refused(keys []string, outcome Outcome, detail string, status int, err error)
	// Acquired counts a request that has its lock. release releases the lock, if the handler hasn't, and logs and counts how it has ended. lost is the
	// reason if the handler has told its client that the lock is lost although the masters had it, and otherwise nil.
	Acquired(keys []string, lock *Lock) (release func(lost error))
}

// Required checks requests by a Requirement.
type Required[Turn any] interface {
	// Check returns the refusal of a request that doesn't meet the Requirement, or nil. It logs and counts the refusal. It removes an offer of h2c,
	// and the body of CONNECT, from the request.
	Check(r *http.Request) Refusal[Turn]
	// Expect returns the refusal that a request would get after these rules, the outermost first. It returns nil if Check would let the request
	// through, or if one of the rules would refuse it. It takes no lock, and ignores the DryRun of the Requirement.
	Expect(r *http.Request, rules []Explanation) Refusal[Turn]
}

// Requirement says which requests need the lock of a rule. The zero value has the defaults.
type Requirement struct {
	// The names of the rules whose locks count: the lock of one of them is enough. Default: each rule with a key that one request holds at a time.
	//
	// Name the rules if a request may come through a rule whose key the client chooses, such as a header.
	Rules []string `json:"rules,omitempty"`
	// The paths that need no lock: `/login /cart/*`, or `GET HEAD /orders/*?page,limit` for these methods alone. A request must have the path as it
	// is written, and only the parameters that are named.
	//
	// A * stands for a segment of a-z, 0-9, "_" and "-". A segment with a capital letter could be another spelling of a route that needs a lock. An
	// {id} stands for a segment that may have capitals and "~", too. Segments that are written out may have dots, as in /robots.txt.
	Except []string `json:"except,omitempty"`
	// `pass` lets a request through if a rule has passed it without a lock because it has no key. Default: `refuse`.
	OnMissingKey string `json:"on_missing_key,omitempty"`
	// Requires a lock for GET, HEAD and OPTIONS, too, for upstreams that change something on such requests. Default: off.
	All bool `json:"all,omitempty"`
	// Refuses nothing, but logs and counts the requests that it would refuse. Default: off.
	DryRun bool `json:"dry_run,omitempty"`
}

// Preset has the settings that suit a sender of webhooks, or APIs with Idempotency-Key; docs/presets.md gives the reasons.
type Preset struct {
	Key        string        // key template
	Dedupe     string        // template of the ID of a delivery
	Wait       time.Duration // less than the sender waits for a response, so that the handler has time left
	HeldStatus int           // 0 for the default
	MaxBody    int64         // 0 for the default

	IdempotencyKey    bool          // the ID comes from the header Idempotency-Key, and not from Dedupe; a request must have this header
	Scope             string        // template of the sender
	Remember          time.Duration // 0: no responses are remembered
	RememberStatus    []string      // as in Rule.RememberStatus; nil for the default
	IgnoreFingerprint bool          // a repeat may differ from the first delivery
}
