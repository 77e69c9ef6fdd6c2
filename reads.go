package caddyredlock

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
)

// warnOfReads names the rules of a server that refuse each GET which their matchers let through, because they read the key from the body.
func warnOfReads(ctx caddy.Context, server *caddyhttp.Server) {
	warned := make(map[[2]string]bool)
	walk{server: server}.through(server.Routes, progress{}, func(n node, now progress) {
		if n.rule == nil || now.noGET {
			return
		}
		id := [2]string{engine.Name(*n.rule), n.source["key"]}
		if s, err := (&Handler{Rule: *n.rule}).compiled(); err != nil || !s.NeedsBody() || warned[id] { // Provision returns the error
			return
		}
		warned[id] = true
		ctx.Logger().Warn("rule reads a key or an ID from the body, and its matcher lets GET through, which has none and gets 400: "+
			"leave out what changes nothing, as in @changes { not method GET HEAD OPTIONS }, or set on_missing_key pass (docs/problems.md#missing_key)",
			zap.String("rule", id[0]), zap.String("at", id[1]))
	})
}

// passesGET reports whether the matchers of a route let a GET through, as far as they name methods, or places that other requests have, too. A matcher
// of another kind may look at anything, so a route with one counts as closed.
func passesGET(route caddyhttp.Route) bool {
	return !isConditional(route) || slices.ContainsFunc(matchersOf(route), func(set caddy.ModuleMap) bool {
		for name, matcher := range set {
			switch {
			case name == "method" && !hasGET(matcher), name == "not" && !passesNot(matcher):
				return false
			case name != "method" && name != "not" && !slices.Contains(ofPlaces, name):
				return false
			}
		}
		return true
	})
}

// takesGET reports whether a route takes each GET.
func takesGET(route caddyhttp.Route) bool {
	return slices.ContainsFunc(matchersOf(route), func(set caddy.ModuleMap) bool { return len(set) == 1 && hasGET(set["method"]) })
}

// ofPlaces are the matchers that take a GET as they take a POST.
var ofPlaces = []string{"client_ip", "host", "path", "path_regexp", "protocol", "query", "remote_ip"}

func passesNot(matcher json.RawMessage) bool {
	var sets []caddy.ModuleMap
	return json.Unmarshal(matcher, &sets) == nil && !slices.ContainsFunc(sets, func(set caddy.ModuleMap) bool {
		for name := range set {
			if name != "method" && !slices.Contains(ofPlaces, name) {
				return true
			}
		}
		return len(set) == 1 && hasGET(set["method"])
	})
}

func hasGET(methods json.RawMessage) bool {
	var names []string
	return json.Unmarshal(methods, &names) == nil && slices.Contains(names, http.MethodGet)
}

// matchersOf returns the matchers of a route in JSON, whether they are loaded or not.
func matchersOf(route caddyhttp.Route) (sets []caddy.ModuleMap) {
	for _, set := range route.MatcherSetsRaw {
		sets = append(sets, set)
	}
	for _, set := range conditionsOf(route) {
		inJSON := make(caddy.ModuleMap)
		for _, matcher := range set {
			name := "unknown"
			if module, ok := matcher.(caddy.Module); ok {
				name = module.CaddyModule().ID.Name()
			}
			inJSON[name], _ = json.Marshal(matcher)
		}
		sets = append(sets, inJSON)
	}
	return sets
}
