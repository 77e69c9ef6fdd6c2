package caddyredlock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/intercept"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy/fastcgi"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// checkServer returns an error if a request that a rule has refused, or that has failed behind one, may be served all the same: an error
// route or an intercept around the rule runs without the lock.
func checkServer(ctx caddy.Context, server *caddyhttp.Server) error {
	for h := range hostsOf(ctx, server) {
		w := walk{server: server}.refusedBy(h.routes)
		if len(w.refusing) == 0 {
			continue
		}
		around := ""
		w.through(h.routes, progress{}, func(n node, now progress) {
			if n.rule != nil {
				around = cmp.Or(around, now.around)
			}
		})
		where := h.String()
		if around == "" {
			around, _ = w.acting(h.errors, progress{})
			where = "handle_errors for " + where
		}
		if around != "" {
			return fmt.Errorf("%s: %s would serve, without a lock, requests that a rule refuses or that fail behind one: before it, rewrite them to a page of your own, "+
				"path and query (rewrite * /errors/{err.status_code}.html?), or put the refusing rule of its own there, with the same key, without a matcher and without on_missing_key pass (docs/hosts.md#errors)", where, around)
		}
	}
	return nil
}

// site is a route of the server, with the hosts for which the route is.
type site struct {
	route caddyhttp.Route
	hosts []string // nil for all
	whole bool     // it takes all requests for its hosts
}

func sitesOf(ctx caddy.Context, routes caddyhttp.RouteList) (sites []site) {
	for _, route := range routes {
		s := site{route: route, whole: true}
		everywhere := !isConditional(route)
		add := func(hosts caddyhttp.MatchHost, matchers int) {
			everywhere = everywhere || hosts == nil
			s.hosts = append(s.hosts, hosts...)
			s.whole = s.whole && matchers == 1
		}
		for _, set := range route.MatcherSetsRaw {
			var hosts caddyhttp.MatchHost
			if raw := set["host"]; raw != nil && json.Unmarshal(raw, &hosts) == nil {
				_ = hosts.Provision(ctx) // spells the names as in loaded routes; Caddy itself reports errors
			}
			add(hosts, len(set))
		}
		for _, set := range conditionsOf(route) {
			var hosts caddyhttp.MatchHost
			for _, matcher := range set {
				if m, ok := matcher.(*caddyhttp.MatchHost); ok {
					hosts = *m
				}
			}
			add(hosts, len(set))
		}
		if everywhere {
			s.hosts = nil
		}
		sites = append(sites, s)
	}
	return sites
}

// host is a kind of host that the routes of a server distinguish, with the routes that a request for such a host reaches.
type host struct {
	name           string // "" for a host that no route names
	routes, errors caddyhttp.RouteList
}

func (h host) String() string { return cmp.Or(h.name, "any host") }

// hostsOf yields all kinds of hosts of a server.
func hostsOf(ctx caddy.Context, server *caddyhttp.Server) iter.Seq[host] {
	var errorRoutes caddyhttp.RouteList
	if server.Errors != nil {
		errorRoutes = server.Errors.Routes
	}
	primary, failed := sitesOf(ctx, server.Routes), sitesOf(ctx, errorRoutes)
	names := []string{""}
	for _, s := range slices.Concat(primary, failed) {
		names = append(names, s.hosts...)
	}
	slices.Sort(names)
	return func(yield func(host) bool) {
		for _, name := range slices.Compact(names) {
			if !yield(host{name, reached(primary, name), reached(failed, name)}) {
				return
			}
		}
	}
}

// reached returns the routes that a request for this host reaches.
func reached(sites []site, host string) (routes caddyhttp.RouteList) {
	for _, s := range sites {
		if s.hosts != nil && !slices.ContainsFunc(s.hosts, func(pattern string) bool { return matchesHost(pattern, host) }) {
			continue
		}
		routes = append(routes, s.route)
		if s.route.Terminal && s.whole {
			break
		}
	}
	return routes
}

// matchesHost reports whether a pattern matches a host. The host may be a pattern itself.
func matchesHost(pattern, host string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if want[i] != "*" && !strings.EqualFold(want[i], have[i]) {
			return false
		}
	}
	return true
}

func isConditional(route caddyhttp.Route) bool {
	return len(route.MatcherSetsRaw) > 0 || len(conditionsOf(route)) > 0
}

// conditionsOf returns the loaded matchers of a route, without the matcher that removes forged headers.
func conditionsOf(route caddyhttp.Route) (sets caddyhttp.MatcherSets) {
	for _, set := range route.MatcherSets {
		if len(set) > 0 {
			if _, ours := set[0].(*forgedHeaders); ours {
				set = set[1:]
			}
		}
		if len(set) > 0 {
			sets = append(sets, set)
		}
	}
	return sets
}

// node has the facts about a handler that the checks of routes need. The handler may be loaded or not.
type node struct {
	Handler        string                      `json:"handler"`
	Name           string                      `json:"name"` // the named route that the handler invokes
	URI            string                      `json:"uri"`
	Routes         caddyhttp.RouteList         `json:"routes"`
	Errors         *caddyhttp.HTTPErrorConfig  `json:"errors"`
	HandleResponse []caddyhttp.ResponseHandler `json:"handle_response"`
	Rewrite        *rewrite.Rewrite            `json:"rewrite"` // of a proxy
	Transport      struct {
		Protocol string            `json:"protocol"`
		Env      map[string]string `json:"env"`
	} `json:"transport"`

	text      string           // the handler in JSON, unless it is loaded and no rewrite
	required  *Require         // of redlock_require
	rule      *middleware.Rule // of redlock
	source    source           // of redlock
	upstreams []string         // of a loaded proxy
}

func nodesOf(route caddyhttp.Route) (nodes []node) {
	for _, raw := range route.HandlersRaw {
		nodes = append(nodes, readNode(raw))
	}
	for _, handler := range route.Handlers {
		nodes = append(nodes, loadedNode(handler))
	}
	return nodes
}

// readNode reads the settings of a handler that a node has. Handlers of other modules may have settings of the same names, which mean something else.
func readNode(text []byte) node {
	n := node{text: string(text)}
	_ = json.Unmarshal(text, &n)
	switch n.Handler {
	case "rewrite": // in the same words as a loaded one
		var plain rewrite.Rewrite
		_ = json.Unmarshal(text, &plain)
		text, _ = json.Marshal(plain)
		n.text = string(text)
	case "redlock":
		h := new(Handler)
		_ = json.Unmarshal(withoutName(text), h)
		n.rule, n.source = &h.Rule, h.Source
	case "redlock_require":
		n.required = new(Require)
		_ = json.Unmarshal(text, n.required)
	}
	return n
}

// withoutName removes what names the module, which its settings don't have.
func withoutName(text []byte) []byte {
	var settings map[string]json.RawMessage
	_ = json.Unmarshal(text, &settings)
	delete(settings, "handler")
	text, _ = json.Marshal(settings)
	return text
}

func loadedNode(handler caddyhttp.MiddlewareHandler) (n node) {
	switch handler := handler.(type) {
	case *caddyhttp.Subroute:
		n.Routes, n.Errors = handler.Routes, handler.Errors
	case *caddyhttp.Invoke:
		n.Name = handler.Name
	case *Handler:
		n.rule, n.source = &handler.Rule, handler.Source
	case *Require:
		n.required = handler
	case *rewrite.Rewrite:
		text, _ := json.Marshal(handler)
		n = readNode(text)
	case *intercept.Intercept:
		n.HandleResponse = handler.HandleResponse
	case *reverseproxy.Handler:
		n.HandleResponse = handler.HandleResponse
		n.Rewrite = handler.Rewrite
		for _, upstream := range handler.Upstreams {
			n.upstreams = append(n.upstreams, upstream.Dial)
		}
		if transport, ok := handler.Transport.(*fastcgi.Transport); ok {
			n.Transport.Protocol, n.Transport.Env = protocolFastCGI, transport.EnvVars
		}
	}
	if module, ok := handler.(caddy.Module); ok {
		n.Handler = module.CaddyModule().ID.Name()
	}
	return n
}

const protocolFastCGI = "fastcgi"

type walk struct {
	server  *caddyhttp.Server
	invoked []string // the named routes that the walk is in

	refusing  []refusing // the rules whose refusals come to the routes
	rewriting bool       // the routes of these rules have a rewrite
}

// refusing is a rule that may refuse a request. rewrites has the rewrites before the rule, without which the same key template may make another key
// elsewhere.
type refusing struct {
	rule     *middleware.Rule
	rewrites string
}

// refusedBy returns the walk through the routes for what the rules of other routes refuse.
func (w walk) refusedBy(routes caddyhttp.RouteList) walk {
	var rules []refusing
	w.through(routes, progress{}, func(n node, now progress) {
		w.rewriting = w.rewriting || n.Handler == "rewrite"
		if n.rule != nil {
			rules = append(rules, refusing{n.rule, now.rewrites})
		}
	})
	w.refusing = rules
	return w
}

// into returns the routes inside of a handler, and the walk through them. It returns no routes for a named route that invokes itself.
func (w walk) into(n node) (walk, caddyhttp.RouteList) {
	if n.Handler != "invoke" {
		return w, n.Routes
	}
	route := w.server.NamedRoutes[n.Name]
	if route == nil || slices.Contains(w.invoked, n.Name) {
		return w, nil
	}
	w.invoked = append(slices.Clip(w.invoked), n.Name)
	return w, caddyhttp.RouteList{*route}
}

// progress is the state of a request when it reaches a handler.
type progress struct {
	own      bool               // the request was rewritten to a page of the error route's own
	rewrites string             // the rewrites of the request, one after the other; unclear if not all requests have the same
	around   string             // a handler before this one that serves, without a lock, the request if a rule refuses it; "" for none
	noGET    bool               // as far as is known, no GET comes here
	guarded  bool               // the request has come through redlock_guard
	locked   []int              // the indices of the refusing rules whose keys the request has locked again
	required *Require           // the redlock_require that the request has passed; nil for none
	rules    []*middleware.Rule // the rules that may have taken the request
}

const unclear = "unclear"

func (p progress) and(other progress) progress {
	both := progress{own: p.own && other.own, rewrites: p.rewrites, around: cmp.Or(p.around, other.around), noGET: p.noGET && other.noGET, guarded: p.guarded && other.guarded, required: p.required}
	if p.rewrites != other.rewrites {
		both.rewrites = unclear
	}
	if other.required == nil {
		both.required = nil
	}
	for _, i := range p.locked {
		if slices.Contains(other.locked, i) {
			both.locked = append(both.locked, i)
		}
	}
	both.rules = slices.Concat(p.rules, without(other.rules, p.rules))
	return both
}

// without returns the rules that are none of some. Rules of one name with different keys are different rules.
func without(rules, some []*middleware.Rule) []*middleware.Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(rule *middleware.Rule) bool {
		return slices.ContainsFunc(some, func(other *middleware.Rule) bool {
			return engine.Name(*rule) == engine.Name(*other) && slices.Equal(rule.Keys, other.Keys) && rule.Preset == other.Preset
		})
	})
}

func namesOf(rules []*middleware.Rule) (names []string) {
	for _, rule := range rules {
		names = append(names, engine.Name(*rule))
	}
	return names
}

// excludesLike reports whether requests under two rules exclude each other as requests under one rule do.
func excludesLike(rule, refused *middleware.Rule) bool {
	slots := func(r *middleware.Rule) []int {
		if len(r.Concurrency) == 0 {
			return []int{1}
		}
		return r.Concurrency
	}
	id := func(r *middleware.Rule) [6]string {
		return [6]string{r.Preset, r.BodyFormat, r.IdempotencyKey, r.Dedupe, r.Scope, r.Site}
	}
	return slices.Equal(rule.Keys, refused.Keys) && slices.Equal(slots(rule), slots(refused)) && id(rule) == id(refused) &&
		rule.OnMissingKey != middleware.Pass && // an earlier handler may have read the body
		(rule.OnNoQuorum != middleware.Pass || refused.OnNoQuorum == middleware.Pass) && (!rule.DryRun || refused.DryRun)
}

// harmless are the handlers that pass a request on, or answer it themselves and change nothing.
var harmless = []string{"authentication", "copy_response", "copy_response_headers", "encode", "error", "file_server", "headers", "intercept", "invoke", "log_append", "map",
	"metrics", "push", "redlock", "redlock_guard", "redlock_require", "request_body", "rewrite", "slow_backend", "static_response", "subroute", "templates", "timeouts", "tracing", "vars"}

// acting returns the first handler that may act on a request as its client has sent it, or "", and the state of the request behind the routes.
func (w walk) acting(routes caddyhttp.RouteList, now progress) (handler string, after progress) {
	after = w.through(routes, now, func(n node, now progress) {
		locked := len(w.refusing) > 0 && len(now.locked) == len(w.refusing)
		if handler == "" && !locked && n.actsOn(now.own) {
			handler = cmp.Or(n.Handler, "a handler")
		}
	})
	return handler, after
}

// through calls visit for each handler, with the state of a request before it, and returns the state behind the routes.
func (w walk) through(routes caddyhttp.RouteList, now progress, visit func(n node, now progress)) progress {
	groups := make(map[string]progress) // only one route of each group runs
	rules := make(map[string][]*middleware.Rule)
	taken := false // an earlier route takes each GET
	for _, route := range routes {
		inside := now
		inside.noGET = now.noGET || taken || !passesGET(route)
		taken = taken || isConditional(route) && takesGET(route)
		inside.rules = without(now.rules, rules[route.Group])
		for _, n := range nodesOf(route) {
			inside = w.throughOne(n, inside, visit)
		}
		earlier, ok := groups[route.Group]
		if route.Group == "" || !ok {
			earlier = inside
		}
		if route.Group != "" {
			rules[route.Group] = slices.Concat(rules[route.Group], without(inside.rules, now.rules))
		}
		groups[route.Group] = earlier.and(inside)
		switch {
		case !isConditional(route):
			now = inside.and(earlier)
		case !route.Terminal:
			now = now.and(inside)
		}
	}
	return now
}

func (w walk) throughOne(n node, now progress, visit func(n node, now progress)) progress {
	visit(n, now)
	switch n.Handler {
	case "redlock":
		now.rules = slices.Concat(without(now.rules, []*middleware.Rule{n.rule}), []*middleware.Rule{n.rule})
		for i, refused := range w.refusing {
			if now.rewrites == refused.rewrites && now.rewrites != unclear && !slices.Contains(now.locked, i) && excludesLike(n.rule, refused.rule) {
				now.locked = append(slices.Clip(now.locked), i)
			}
		}
	case "redlock_guard":
		now.guarded = true
	case "redlock_require":
		now.required = n.required
	case "rewrite":
		now.own = rewritesToOwn(n.URI, n.text, now.own)
		if now.rewrites == unclear || placeholders.MatchString(n.text) {
			now.rewrites = unclear
		} else {
			now.rewrites += n.text
		}
	}
	for _, response := range n.HandleResponse {
		w.through(response.Routes, now, visit)
	}
	if n.Handler == "intercept" {
		now.around = cmp.Or(w.intercepts(n), now.around)
	}
	inside, inner := w.into(n)
	if n.Errors == nil || len(n.Errors.Routes) == 0 {
		return inside.through(inner, now, visit)
	}
	w.through(n.Errors.Routes, now, visit)
	before := now.around
	now.around = cmp.Or(before, aroundErrors)
	now = inside.through(inner, now, visit)
	if now.around == aroundErrors {
		now.around = before
	}
	return now
}

const aroundErrors = "the errors of a subroute, or what stands behind it,"

// intercepts names what of an intercept may serve, without a lock, a request that a rule behind it refuses, or is "".
func (w walk) intercepts(n node) (around string) {
	now := progress{}
	if w.rewriting {
		now.rewrites = unclear
	}
	for _, response := range n.HandleResponse {
		if handler, _ := w.acting(response.Routes, now); handler != "" {
			around = "intercept: " + handler
		}
	}
	return around
}

// actsOn reports whether a handler may act on a request as its client has sent it, or on one for the error route's own page.
func (n node) actsOn(own bool) bool {
	if n.Handler == "reverse_proxy" {
		return !n.asksForOwn(own)
	}
	return !own && !slices.Contains(harmless, n.Handler)
}

// fileRelative is a file that was found for the path, as php_fastcgi does.
const fileRelative = "{http.matchers.file.relative}"

// rewritesToOwn reports whether a request asks for the error route's own page after a rewrite, of which text is the whole. own says whether it did
// before.
func rewritesToOwn(uri, text string, own bool) bool {
	switch {
	case fromClient(strings.ReplaceAll(text, fileRelative, "")):
		return false
	case uri == "", uri == fileRelative: // the rewrite changes the method, or parts of the URI
		return own
	}
	return isOwnPath(uri) && (own || strings.Contains(uri, "?"))
}

// asksForOwn reports whether a proxy asks for the error route's own page. A script behind FastCGI is also told the URL of the client.
func (n node) asksForOwn(own bool) bool {
	if n.Transport.Protocol == protocolFastCGI && !isOwnPath(n.Transport.Env["REQUEST_URI"]) {
		return false
	}
	if n.Rewrite == nil {
		return own
	}
	text, _ := json.Marshal(n.Rewrite)
	return rewritesToOwn(n.Rewrite.URI, string(text), own)
}

// authenticates reports whether a proxy only asks whether a request may go on, as forward_auth does. The question has the request's headers, and
// its query.
func (n node) authenticates() bool {
	return n.Handler == "reverse_proxy" && n.Rewrite != nil && n.Rewrite.Method == http.MethodGet && isOwnPath(n.Rewrite.URI)
}

var placeholders = regexp.MustCompile(`\{[^"{}\s]+\}`)

// notOfClient are the beginnings of placeholders that show nothing from a client.
var notOfClient = []string{"{http.error.", "{http.redlock.outcome}", "{http.redlock.rule}", "{env.", "{system."}

// isOwnPath reports whether a client has no part in the path of a URI, nor in its query.
func isOwnPath(uri string) bool { return strings.HasPrefix(uri, "/") && !fromClient(uri) }

// fromClient reports whether a text has a placeholder that may show something from a client.
func fromClient(text string) bool {
	return slices.ContainsFunc(placeholders.FindAllString(text, -1), func(name string) bool {
		return !slices.ContainsFunc(notOfClient, func(known string) bool { return strings.HasPrefix(name, known) })
	})
}
