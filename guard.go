package caddyredlock

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	caddy.RegisterModule(Guard{})
	httpcaddyfile.RegisterHandlerDirective("redlock_guard", parseGuard)
	httpcaddyfile.RegisterDirectiveOrder("redlock_guard", httpcaddyfile.Before, "map") // before the directives that change the target
}

// Guard refuses, with 400, requests that the matchers of redlock may miss although an upstream serves them as others: with a target
// that doesn't begin with `/`, a path that only some servers clean, a path in the query or in a header, a method that isn't in upper case,
// or another method in a header or in the parameter `_method`.
//
// It looks at requests that may change something, and at others if the server has a rule for them, as far as the matchers of rules name
// methods and paths. Refusals have the outcome `unclear_target`, and are logged and counted as those of the rule `guard`.
type Guard struct {
	refusalOf func(r *http.Request, matters func(*http.Request) bool) engine.Refusal
	hideRule  func() // removes the guard from the metrics
	lines     *notices.Queue[notices.Line]
}

// CaddyModule returns the Caddy module information.
func (Guard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.redlock_guard", New: func() caddy.Module { return new(Guard) }}
}

// Provision makes the guard log and count its refusals.
func (g *Guard) Provision(ctx caddy.Context) error {
	rule := middleware.Rule{Name: "guard"}
	g.lines, rule.Logger = queuedLog(ctx)
	rule.Observer, g.hideRule = series.Rule(rule.Name)
	g.refusalOf = engine.Guard(rule)
	return nil
}

// Cleanup ends the series of the guard in the metrics, unless another configuration has a guard.
func (g *Guard) Cleanup() error {
	if g.hideRule != nil {
		g.hideRule()
	}
	if g.lines != nil {
		g.lines.Close()
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Guard)(nil)
	_ caddy.CleanerUpper          = (*Guard)(nil)
	_ caddyhttp.MiddlewareHandler = (*Guard)(nil)
)

// ServeHTTP serves the request unless it is refused.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if refusal := g.refusalOf(r, matters); refusal != nil {
		return refuse(w, r, g, refusal)
	}
	return next.ServeHTTP(w, r)
}

func matters(r *http.Request) bool { return engine.MayChange(r) || mayLock(r) }

// mayLock reports whether the server of a request has a rule for the request, or for a request for which an upstream may take it.
func mayLock(r *http.Request) bool {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || hasRule(server.Routes, r) {
		return true
	}
	for _, route := range server.NamedRoutes {
		if hasRule(caddyhttp.RouteList{*route}, r) {
			return true
		}
	}
	return false
}

func hasRule(routes caddyhttp.RouteList, r *http.Request) bool {
	for i := range routes {
		excluded := func(set caddyhttp.MatcherSet) bool {
			return slices.ContainsFunc(set, func(matcher any) bool { return excludes(matcher, r) })
		}
		if sets := routes[i].MatcherSets; len(sets) > 0 && !slices.ContainsFunc(sets, func(set caddyhttp.MatcherSet) bool { return !excluded(set) }) {
			continue
		}
		for _, handler := range routes[i].Handlers {
			inner, nested := handler.(*caddyhttp.Subroute)
			if _, ok := handler.(*Handler); ok || nested && hasRule(inner.Routes, r) {
				return true
			}
		}
	}
	return false
}

// excludes reports whether a matcher can't match a request, whatever path an upstream finds in it. Matchers that name no method and no path may match
// any request.
func excludes(matcher any, r *http.Request) bool {
	switch matcher := matcher.(type) {
	case *caddyhttp.MatchMethod:
		return !slices.Contains(*matcher, r.Method)
	case *caddyhttp.MatchPath:
		return !slices.ContainsFunc(*matcher, func(pattern string) bool { return engine.Mentions(r, firstWord(pattern)) })
	case *forgedHeaders:
		return !matcher.alone() // the matcher leaves the decision to the other matchers
	case *caddyhttp.MatchNot:
		return slices.ContainsFunc(matcher.MatcherSets, func(set caddyhttp.MatcherSet) bool {
			if len(set) != 1 {
				return false
			}
			methods, ok := set[0].(*caddyhttp.MatchMethod)
			return ok && slices.Contains(*methods, r.Method)
		})
	}
	return false
}

// firstWord returns the text with which every path of a pattern begins: the first segment, up to a wildcard. It may be empty.
func firstWord(pattern string) string {
	word, _, _ := strings.Cut(strings.TrimPrefix(strings.ToLower(pattern), "/"), "/")
	if i := strings.IndexAny(word, "*%{"); i >= 0 {
		word = word[:i]
	}
	return word
}

// parseGuard reads "redlock_guard [<matcher>]".
func parseGuard(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the directive
	if h.NextArg() {
		return nil, h.ArgErr()
	}
	return new(Guard), nil
}
