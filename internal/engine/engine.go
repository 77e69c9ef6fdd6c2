// Package engine has what our own programs use of package middleware beyond what it exports: the Caddy module, the agent, the metrics and the commands.
package engine

import (
	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

type (
	Serializer  = parts.Serializer[middleware.Rule, redlock.Locker]
	Template    = parts.Template
	Explanation = parts.Explanation
	Refusal     = parts.Refusal[middleware.Turn]
	Required    = parts.Required[middleware.Turn]
	Requirement = parts.Requirement
	Preset      = parts.Preset
	Unruled     = parts.Unruled[middleware.Outcome, redlock.Lock]
)

var all = parts.Middleware.(parts.Parts[middleware.Rule, middleware.KeyFunc, middleware.Turn, middleware.Outcome, middleware.Reason, middleware.Budget, redlock.Locker, redlock.Lock])

var (
	// Compile returns a Serializer for a rule. It calls placeholder for the placeholders of templates. Each error begins with the name of the wrong
	// setting in a configuration, such as on_no_quorum. Compile has no Locker, so only Serve notices a TTL that the Locker doesn't allow.
	Compile = all.Compile
	// Name identifies a rule in errors, logs, metrics and traces.
	Name = all.Name

	// Placeholder returns the function that reads the value of a placeholder of net/http, given its name without braces.
	Placeholder = all.Placeholder
	// PlaceholderOf is Placeholder, except that it refuses the FenceHeader, the KeyHeader and the SlotHeader of the rule, which the rule removes from
	// each request before it reads anything.
	PlaceholderOf = all.PlaceholderOf
	// ParseTemplate parses a template. It calls placeholder for each placeholder that isn't a field of the body.
	ParseTemplate = all.ParseTemplate

	// RefusalOf returns the refusal that a rule without settings would have for an error of package redlock. ctx is the request's context. It is for
	// handlers that call a Locker themselves.
	RefusalOf = all.RefusalOf
	// NewUnruled returns an Unruled, which logs and counts by the rule's Name, Logger and Observer, as a rule does. The requests can have these outcomes.
	NewUnruled = all.NewUnruled
	// Guard returns a function that returns a Refusal for a request if some router and some upstream may read it differently and matters reports true,
	// and nil otherwise. The function calls matters only for such a request. It logs and counts refusals by the rule's Name, Logger and Observer. It
	// removes an offer of h2c, and the body of CONNECT, from every request.
	Guard = all.Guard
	// Require checks a Requirement. Refusals are logged and counted by the rule's Name, Logger and Observer. The Name is "require" by default.
	Require = all.Require

	// MayChange reports whether some upstream may change something for a request, because of the request's method, or because of another method that
	// the request names in a header or in the query.
	MayChange = all.MayChange
	// Mentions reports whether a request that a Guard refuses may lead to a path that contains this lower-case word.
	Mentions = all.Mentions
	// StripRoute removes from a request the headers that name another path or method to some upstream. It is for a refused request, before another
	// handler, such as a proxy, writes the error page.
	StripRoute = all.StripRoute

	// Presets returns the names of all presets.
	Presets = all.Presets
	// PresetOf returns the preset for a sender, such as stripe, or for APIs whose clients send Idempotency-Key: idempotency-key.
	PresetOf = all.Preset
	// Outcomes returns all outcomes.
	Outcomes = all.Outcomes
	// Reasons returns all reasons, for metrics that begin at zero.
	Reasons = all.Reasons

	// Now returns a turn with the present state of its lock. If the lock was lost, the Outcome is OutcomeLost in place of OutcomeAcquired, and Detail
	// has the reason. This includes a loss that only the release has shown.
	Now = all.Now

	// CheckConcurrency returns an error unless there is one number, or as many numbers as keys, and each number is from 1 to redlock.MaxConcurrency.
	CheckConcurrency = all.CheckConcurrency

	// Usage returns how many bytes the bodies in memory take now of a budget, and how many they may take. nil is the budget of all rules without one of
	// their own.
	Usage = all.Usage
)
