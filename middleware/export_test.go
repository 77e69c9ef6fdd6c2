package middleware

import (
	"net/http"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// These are what package internal/engine has of this package.
var (
	RefusalOf      = refusalOf
	MayChange      = mayChange
	Outcomes       = allOutcomes
	Reasons        = allReasons
	Presets        = presetNames
	PresetOf       = presetOf
	Placeholder    = placeholder
	ParseTemplate  = parseTemplate
	IdempotencyKey = idempotencyKey
	NewGuard       = func(rule Rule) *compiled { return newGuard(rule) }
)

type (
	Refusal     = *refusalError
	Template    = keyTemplate
	KeyError    = keyError
	Requirement = parts.Requirement
)

// Compile returns what serves requests by a rule, without a Locker.
func Compile(rule Rule) (serializer, error) {
	c, err := compile(rule, nil, (*Rule).placeholder)
	return serializer{c}, err
}

// CompileFunc is Compile with a function in place of the templates, as NewFunc has it.
func CompileFunc(rule Rule, key KeyFunc) serializer {
	return serializer{mustCompile(rule, onlyKey(key))}
}

// Explain returns the keys that New, with this template and this rule, would lock for a request.
func Explain(template string, r *http.Request, rule Rule) explanation {
	return mustCompile(rule.withKey(template), nil).explain(r)
}

// NewRequired is Require with these settings.
func NewRequired(rule Rule, want Requirement) (func(http.Handler) http.Handler, error) {
	q, err := newRequiring(rule, want)
	if err != nil {
		return nil, err
	}
	return q.handler, nil
}

// Name is the name of a rule in logs.
func Name(rule Rule) string { return rule.name() }

// RetryAfter is how long a client is told to wait.
func RetryAfter(e Refusal) time.Duration { return e.retryAfter }

// Guard is what internal/engine calls for each request.
func (c *compiled) Refuse(r *http.Request, matters func(*http.Request) bool) Refusal {
	refusal, _ := c.guard(r, matters).(Refusal)
	return refusal
}

// Usage returns how many bytes of a budget are taken.
func (b *Budget) Usage() (used, size int64) { return b.usage() }

// KeysOf derives the keys of a request from several templates.
func KeysOf(r *http.Request, texts ...string) ([]string, error) {
	all, err := parseTemplates(texts, placeholder)
	if err != nil {
		return nil, err
	}
	keys, _, err := all.Keys(r)
	return keys, err
}

// RunningKey is the key of a delivery under a rule that remembers nothing.
func RunningKey(d Delivery) string { return d.runningKey() }

// ResponsesThatWait is how many responses wait for room in memory.
func ResponsesThatWait() int { return remember.Memory.Waiting() }

// ResponseBytes is how much memory responses take.
func ResponseBytes() int64 {
	used, _ := remember.Memory.Usage()
	return used
}

// StatusOf is that of the responses to requests with this outcome, or 0 if they are served.
func StatusOf(outcome Outcome) int { return outcomes[outcome].status }
