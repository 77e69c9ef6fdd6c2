package middleware

import (
	"context"
	"net/http"

	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Package internal/engine reaches the unexported parts of this package only through this function.
func init() {
	parts.Middleware = parts.Parts[Rule, KeyFunc, Turn, Outcome, Reason, Budget, redlock.Locker, redlock.Lock]{
		Compile: func(rule Rule, placeholder func(rule *Rule, name string) (KeyFunc, error)) (parts.Serializer[Rule, redlock.Locker], error) {
			c, err := compile(rule, nil, placeholder)
			if err != nil {
				return nil, err
			}
			return serializer{c}, nil
		},
		Name:          Rule.name,
		Placeholder:   placeholder,
		PlaceholderOf: (*Rule).placeholder,
		ParseTemplate: func(text string, placeholder func(name string) (KeyFunc, error)) (parts.Template, error) {
			t, err := parseTemplate(text, placeholder)
			if err != nil {
				return nil, err
			}
			return t, nil
		},

		RefusalOf: func(ctx context.Context, err error) parts.Refusal[Turn] { return refusalOf(ctx, err) },
		NewUnruled: func(rule Rule, possible ...Outcome) parts.Unruled[Outcome, redlock.Lock] {
			return newUnruled(rule, possible)
		},
		Guard: func(rule Rule) func(*http.Request, func(*http.Request) bool) parts.Refusal[Turn] {
			return newGuard(rule).guard
		},
		Require: func(rule Rule, want parts.Requirement) (parts.Required[Turn], error) {
			return newRequiring(rule, want)
		},

		MayChange:  mayChange,
		Mentions:   mentions,
		StripRoute: stripRoute,

		Presets:  presetNames,
		Preset:   presetOf,
		Outcomes: allOutcomes,
		Reasons:  allReasons,

		Now: Turn.now,

		CheckConcurrency: func(numbers []int, keys int) error { return Concurrency(numbers).check(keys) },

		Usage: (*Budget).usage,
	}
}
