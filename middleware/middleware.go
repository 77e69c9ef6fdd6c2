// Package middleware serializes HTTP requests by key: around any http.Handler it takes a lock
// (package redlock) that a template derives from the request, before the handler runs, and frees it
// when the handler has returned. No two requests with the same key run at once, in any process that
// shares the masters.
package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Option is a setting of the middleware.
type Option func(*Rule)

// WithWait lets a request wait for its lock. Default: 0, no wait.
func WithWait(d time.Duration) Option { return func(rule *Rule) { rule.Wait = d } }

// WithTTL sets the lease on the masters. Default: the Locker's.
func WithTTL(d time.Duration) Option { return func(rule *Rule) { rule.TTL = d } }

// WithMaxHold bounds how long a request may hold its lock. Default: the Locker's, 5 min.
func WithMaxHold(d time.Duration) Option { return func(rule *Rule) { rule.MaxHold = d } }

// WithFenceHeader names the request header that carries the fencing token to the handler.
// Default: Fencing-Token.
func WithFenceHeader(name string) Option { return func(rule *Rule) { rule.FenceHeader = name } }

// WithHeldStatus sets the answer to a request whose lock is held. Default: 423.
func WithHeldStatus(status int) Option { return func(rule *Rule) { rule.HeldStatus = status } }

// WithNoQuorumStatus sets the answer when too few masters answer. Default: 409.
func WithNoQuorumStatus(status int) Option { return func(rule *Rule) { rule.NoQuorumStatus = status } }

// WithPassOnNoQuorum serves requests without a lock when too few masters answer.
// Default: they are refused.
func WithPassOnNoQuorum() Option { return func(rule *Rule) { rule.PassNoQuorum = true } }

// WithPassOnMissingKey serves requests that lack a part of the key without a lock.
// Default: they are answered with 400.
func WithPassOnMissingKey() Option { return func(rule *Rule) { rule.PassMissingKey = true } }

// WithHashedKeys replaces every key by its SHA-256. Default: only those over 200 bytes.
func WithHashedKeys() Option { return func(rule *Rule) { rule.HashKeys = true } }

// WithMaxBody bounds the bytes of a body that is read for a key or a signature; a longer one is
// answered with 413. Default: 1 MiB.
func WithMaxBody(bytes int64) Option { return func(rule *Rule) { rule.MaxBody = bytes } }

// WithBodyTimeout bounds how long such a body may take to arrive; then the answer is 408.
// Default: 10 s.
func WithBodyTimeout(d time.Duration) Option { return func(rule *Rule) { rule.BodyTimeout = d } }

// WithBodyBudget sets the memory for such bodies, which rules may share. Default: 64 MiB for all
// rules that are given none.
func WithBodyBudget(b *Budget) Option { return func(rule *Rule) { rule.BodyBudget = b } }

// WithKeys adds templates to that of New: a request holds the keys of all of them.
func WithKeys(templates ...string) Option {
	return func(rule *Rule) { rule.moreKeys = append(rule.moreKeys, templates...) }
}

// WithVerify checks the signature of a request before its lock is taken, see NewVerifier; one that
// lacks it is answered with 401. Default: no signature is needed.
func WithVerify(scheme string, secrets ...string) Option {
	return func(rule *Rule) {
		verifier, err := NewVerifier(scheme, secrets...)
		if err != nil {
			panic(fmt.Sprintf("middleware: %v", err))
		}
		rule.Verify = verifier
	}
}

// WithReplayWindow bounds how far the time in a signature may be from now, where the sender signs
// it. Default: 5 min.
func WithReplayWindow(d time.Duration) Option { return func(rule *Rule) { rule.ReplayWindow = d } }

// WithLogger sets where lost locks are told. Keys are never logged. Default: no log.
func WithLogger(logger *slog.Logger) Option { return func(rule *Rule) { rule.Logger = logger } }

// New gives a middleware that serializes requests by the key that the template makes of them; see
// Template and Placeholder.
//
//	serialize := middleware.New(locker, "order:{path.id}", middleware.WithWait(2*time.Second))
//	mux.Handle("POST /orders/{id}/pay", serialize(pay))
//
// Put it around the handler, inside the router: {path.NAME} is known only after routing. New panics
// where the template or an option is wrong, as http.ServeMux does with a pattern. ParseTemplate
// gives the error instead.
//
// A body is read only where the template has a placeholder {body.…}: within WithMaxBody, before the
// lock is taken. The handler reads it again, byte for byte.
//
// A request that is not served is answered with application/problem+json: 423 if its lock is held,
// 409 if too few masters answer, 400 if a part of the key is missing, 500 if the lease was lost
// before the handler wrote anything; docs/problems.md has the others.
func New(locker *redlock.Locker, template string, opts ...Option) func(http.Handler) http.Handler {
	rule := newRule(locker, opts)
	templates, err := ParseTemplates(append([]string{template}, rule.moreKeys...), Placeholder)
	if err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	if templates.Global() {
		rule.logger().Warn("key template has no placeholder: all requests share one lock", "template", template)
	}
	return rule.middleware(locker, templates.Keys)
}

// NewFunc is New with a function in place of the template. The function must make different keys of
// what may run at once, and must not read the body.
func NewFunc(locker *redlock.Locker, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	return newRule(locker, opts).middleware(locker, key.Keys)
}

func newRule(locker *redlock.Locker, opts []Option) *Rule {
	rule := &Rule{}
	for _, opt := range opts {
		opt(rule)
	}
	if err := cmp.Or(rule.Check(), locker.Check(rule.lockOptions()...)); err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	return rule
}

func (rule *Rule) middleware(locker *redlock.Locker, keys KeysFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := rule.Serve(locker, keys, w, r, func(w http.ResponseWriter, r *http.Request) error {
				next.ServeHTTP(w, r)
				return nil
			})
			var refusal *Refusal
			if errors.As(err, &refusal) {
				refusal.write(w)
			}
		})
	}
}
