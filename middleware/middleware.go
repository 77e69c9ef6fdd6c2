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

// WithMaxWaiters bounds how many requests wait for one key in this process; further ones are refused at
// once. Default: the Locker's, 1000.
func WithMaxWaiters(n int) Option { return func(rule *Rule) { rule.MaxWaiters = n } }

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
// A request that is not served is answered with application/problem+json: 423 if its lock is held,
// 409 if too few masters answer, 400 if a part of the key is missing, 500 if the lease was lost
// before the handler wrote anything.
func New(locker *redlock.Locker, template string, opts ...Option) func(http.Handler) http.Handler {
	t, err := ParseTemplate(template, Placeholder)
	if err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	rule := newRule(locker, opts)
	if t.Global() {
		rule.logger().Warn("key template has no placeholder: all requests share one lock", "template", template)
	}
	return rule.middleware(locker, t.Key)
}

// NewFunc is New with a function in place of the template. The function must make different keys of
// what may run at once, and must not read the body.
func NewFunc(locker *redlock.Locker, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	return newRule(locker, opts).middleware(locker, key)
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

func (rule *Rule) middleware(locker *redlock.Locker, key KeyFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := rule.Serve(locker, key, w, r, func(w http.ResponseWriter, r *http.Request) error {
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
