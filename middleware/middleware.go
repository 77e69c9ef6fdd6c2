// Package middleware serializes HTTP requests by key: around any http.Handler it takes a lock
// (package redlock) that a template derives from the request, before the handler runs, and frees it
// when the handler has returned. No two requests with the same key run at once, in any process that
// shares the masters.
package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

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
	templates := rule.templates(template)
	if templates.Global() {
		rule.logger().Warn("key template has no placeholder: all requests share one lock", "template", template)
	}
	return rule.middleware(locker, templates.Keys)
}

// NewFunc is New with a function in place of the template. The function must make different keys of
// what may run at once, and must not read the body.
func NewFunc(locker *redlock.Locker, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	rule := newRule(locker, opts)
	if len(rule.moreKeys) > 0 || rule.presetKey != "" {
		panic("middleware: NewFunc makes the keys by its function: WithKeys and WithPreset are for New")
	}
	return rule.middleware(locker, key.Keys)
}

func newRule(locker *redlock.Locker, opts []Option) *Rule {
	rule := withOptions(opts)
	if err := cmp.Or(rule.Check(), locker.Check(rule.lockOptions()...)); err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	return rule
}

func withOptions(opts []Option) *Rule {
	rule := &Rule{}
	for _, opt := range opts {
		opt(rule)
	}
	return rule
}

// templates are those of New and of the options.
func (rule *Rule) templates(first string) Templates {
	templates, err := ParseTemplates(append([]string{cmp.Or(first, rule.presetKey)}, rule.moreKeys...), Placeholder)
	if err != nil {
		panic(fmt.Sprintf("middleware: %v", err))
	}
	return templates
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
