package caddyredlock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/explain"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	caddy.RegisterModule(Require{})
	httpcaddyfile.RegisterDirective("redlock_require", parseRequire)
	// Directly behind redlock, so that a site whose rules come later refuses everything, which is noticed at once. Directly before what
	// serves, it would never be met by a proxy in a handle block, which nobody notices.
	httpcaddyfile.RegisterDirectiveOrder("redlock_require", httpcaddyfile.Before, "push") // redlock is directly behind encode, which is before push
}

// Require serves a request that may change something only under the lock of a rule, and answers others with 403. So what no matcher of a rule
// takes doesn't pass.
//
// The configuration is not loaded if a site that has it has another handler that may act and stands behind none. Refusals have the outcome
// `unlocked`, and are logged, with method and path, and counted as those of the rule `require`.
type Require struct {
	engine.Requirement

	// Other modules' handlers, by their names, that pass requests on, or change nothing. Caddy's are known.
	Harmless []string `json:"harmless,omitempty"`

	required engine.Required
	hideRule func() // from the metrics
	lines    *notices.Queue[notices.Line]
}

// CaddyModule returns the Caddy module information.
func (Require) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.redlock_require", New: func() caddy.Module { return new(Require) }}
}

// Provision checks the settings, and that the sites of its server have nothing that acts without it.
func (q *Require) Provision(ctx caddy.Context) (err error) {
	app, err := ctx.App("redlock")
	if err != nil {
		return fmt.Errorf("getting the redlock app: %w", err)
	}
	rule := middleware.Rule{Name: "require", OriginalURL: originalURL}
	q.lines, rule.Logger = queuedLog(ctx)
	rule.Observer, q.hideRule = series.Rule(rule.Name)
	if q.required, err = engine.Require(rule, q.Requirement); err != nil {
		return fmt.Errorf("redlock_require: %w", err)
	}
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return nil
	}
	return app.(*App).registerRequire(ctx, server)
}

// registerRequire makes Caddy remove our headers from every request. For the first redlock_require of a server, it also checks the server's routes.
func (a *App) registerRequire(ctx caddy.Context, server *caddyhttp.Server) error {
	if !a.covered[server] {
		if err := checkCoverage(ctx, server); err != nil {
			return fmt.Errorf("redlock_require: %w", err)
		}
		a.covered[server] = true
	}
	a.stripAll(ctx, server)
	return nil
}

// checkCoverage returns an error if a site with a redlock_require has a handler that may act and stands behind none.
func checkCoverage(ctx caddy.Context, server *caddyhttp.Server) error {
	all, sites := coverageOf(ctx, server)
	if err := checkRules(sites); err != nil {
		return err
	}
	for _, a := range all {
		switch {
		case len(a.site.requires) == 0 || a.by != nil:
		case a.authenticates:
			return fmt.Errorf("%s, as of forward_auth, asks its upstream with the query and the headers of the client: put redlock_guard before it, or redlock_require (docs/matchers.md#redlock_require)", a)
		default:
			return fmt.Errorf("%s serves requests that may change something, and stands behind no redlock_require: put one before it, in the same block; "+
				"or, if it is another module's handler that only passes requests on: harmless %s (docs/matchers.md#redlock_require)", a, a.handler)
		}
	}
	return nil
}

// Cleanup ends the series, unless another configuration has them.
func (q *Require) Cleanup() error {
	if q.hideRule != nil {
		q.hideRule()
	}
	if q.lines != nil {
		q.lines.Close()
	}
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Require)(nil)
	_ caddy.CleanerUpper          = (*Require)(nil)
	_ caddyhttp.MiddlewareHandler = (*Require)(nil)
	_ caddyfile.Unmarshaler       = (*Require)(nil)
)

// ServeHTTP serves the request unless it is refused.
func (q *Require) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if e := explain.Of(r); e != nil {
		if refusal := q.required.Expect(r, e.Rules()); refusal != nil {
			e.Refuse(refusal, q.DryRun)
			if !q.DryRun {
				w.WriteHeader(refusal.Status())
				return nil
			}
		} else {
			e.Pass(q.All)
		}
		return next.ServeHTTP(w, r)
	}
	if refusal := q.required.Check(r); refusal != nil {
		return refuse(w, r, q, refusal)
	}
	return next.ServeHTTP(w, r)
}

// parseRequire reads the directive, which takes no matcher: with a matcher for what needs no lock, another spelling would need none.
func parseRequire(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	q := new(Require)
	if err := q.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return h.NewRoute(nil, q), nil
}

// UnmarshalCaddyfile sets up the handler from Caddyfile tokens:
//
//	redlock_require [<rule>...] {
//		except [<method>...] <path>...
//		<setting> <value>...
//	}
func (q *Require) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive
	q.Rules = d.RemainingArgs()
	if i := slices.IndexFunc(q.Rules, func(name string) bool { return strings.ContainsAny(name[:min(1, len(name))], "@/*") }); i >= 0 {
		return d.Errf("redlock_require %s: takes the names of rules, and no matcher: name the paths that need no lock with except", q.Rules[i])
	}
	known := settingsOf(d, &q.Requirement)
	delete(known, "rules")
	known["except"] = func() error {
		q.Except = append(q.Except, strings.Join(d.RemainingArgs(), " "))
		return nil
	}
	known["harmless"] = func() error {
		q.Harmless = append(q.Harmless, d.RemainingArgs()...)
		return nil
	}
	if _, err := block(d, known, "except"); err != nil {
		return err
	}
	if _, err := engine.Require(middleware.Rule{}, q.Requirement); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// covered is a handler that may act, and what stands before it.
type covered struct {
	site          *coveredSite
	errors        bool // it serves errors
	handler       string
	authenticates bool
	by            *Require           // that stands before it; nil for none
	rules         []*middleware.Rule // that may have taken a request before it
	upstreams     []string           // of a proxy
}

type coveredSite struct {
	host
	listen   []string  // its server's addresses
	requires []covered // each redlock_require of the site, and the rules before it
}

// harmless reports whether a redlock_require of the site names a handler as one that only passes requests on.
func (s *coveredSite) harmless(handler string) bool {
	return slices.ContainsFunc(s.requires, func(a covered) bool { return slices.Contains(a.by.Harmless, handler) })
}

// checkRules returns an error if a redlock_require names a rule that stands nowhere before it, or if it names none, or a name that several have, and so
// takes the lock of a rule whose key has nothing to do with what is asked for: that of a customer, for one, where the rule of the order has missed the
// request.
func checkRules(sites []*coveredSite) error {
	known := make(map[string]bool) // whether a rule has the name
	for _, site := range sites {
		for _, a := range site.requires {
			for _, name := range a.by.Rules {
				known[name] = known[name] || slices.Contains(namesOf(a.rules), name)
			}
			rules := slices.DeleteFunc(slices.Clone(a.rules), func(rule *middleware.Rule) bool {
				if len(a.by.Rules) > 0 {
					return !slices.Contains(a.by.Rules, engine.Name(*rule))
				}
				return !locksAlone(rule)
			})
			names := slices.Sorted(slices.Values(namesOf(rules)))
			for i := 1; i < len(names); i++ {
				if names[i] == names[i-1] {
					return fmt.Errorf("%s: two rules with different keys have the name %s: give each a name of its own", site, names[i])
				}
			}
			if len(a.by.Rules) == 0 && len(rules) > 1 {
				return fmt.Errorf("%s: the rules %s stand before it, and a client may choose the key of one to miss another: name those whose locks suffice, each alone, as in redlock_require %s (docs/matchers.md#redlock_require)",
					site, strings.Join(namesOf(rules), ", "), engine.Name(*rules[0]))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !known[name] {
			return fmt.Errorf("no rule of the name %s stands before it", name)
		}
	}
	return nil
}

// locksAlone reports whether a rule has a key that one request holds at a time.
func locksAlone(rule *middleware.Rule) bool {
	keys := len(rule.Keys)
	if preset, err := engine.PresetOf(rule.Preset); keys == 0 && err == nil && preset.Key != "" {
		keys = 1
	}
	return keys > 0 && (len(rule.Concurrency) == 0 || slices.Contains(rule.Concurrency, 1))
}

// String names the handler.
func (a covered) String() string {
	where := a.site.String()
	if a.errors {
		where += ": handle_errors"
	}
	return where + ": " + a.handler
}

// coverageOf returns the handlers of a server that may act, for each kind of host. An error route may serve a page of its own. What stands before a
// handler in another block doesn't count, nor what has a matcher.
func coverageOf(ctx caddy.Context, server *caddyhttp.Server) (all []covered, sites []*coveredSite) {
	w := walk{server: server}
	for h := range hostsOf(ctx, server) {
		site := &coveredSite{host: h, listen: server.Listen}
		sites = append(sites, site)
		find := func(n node, now progress) {
			if n.required != nil {
				site.requires = append(site.requires, covered{by: n.required, rules: now.rules})
			}
		}
		w.through(h.routes, progress{}, find)
		w.through(h.errors, progress{}, find)
		add := func(errors bool) func(n node, now progress) {
			return func(n node, now progress) {
				if errors && !n.actsOn(now.own) || !n.actsOn(false) && n.Handler != "reverse_proxy" || n.authenticates() && now.guarded || site.harmless(n.Handler) {
					return
				}
				all = append(all, covered{site, errors, cmp.Or(n.Handler, "a handler"), n.authenticates(), now.required, now.rules, n.upstreams})
			}
		}
		w.through(h.routes, progress{}, add(false))
		w.through(h.errors, progress{}, add(true))
	}
	return all, sites
}

// warnOfOtherWays names the sites whose proxies lead, without any rule, to an upstream before which another site has one.
func warnOfOtherWays(ctx caddy.Context) {
	locked := make(map[string][]*coveredSite) // by upstream
	var open []covered
	for _, server := range httpServers(ctx) {
		all, _ := coverageOf(ctx, server)
		for _, a := range all {
			switch {
			case a.errors, a.authenticates:
			case a.by == nil && len(a.rules) == 0:
				open = append(open, a)
			default:
				for _, upstream := range a.upstreams {
					locked[upstream] = append(locked[upstream], a.site)
				}
			}
		}
	}
	warned := make(map[*coveredSite]bool)
	for _, a := range open {
		for _, upstream := range a.upstreams {
			if others := locked[upstream]; len(others) > 0 && !slices.Contains(others, a.site) && !warned[a.site] {
				warned[a.site] = true
				ctx.Logger().Warn("a site leads to the upstream of another one without its rules: what comes that way takes no lock, unless the site has them, too, or redlock_require (docs/security.md#what-is-left-to-you)",
					zap.String("site", a.site.String()), zap.Strings("listen", a.site.listen), zap.String("upstream", upstream), zap.String("with_rules", others[0].String()))
			}
		}
	}
}

// writeCoverage prints what of a configuration may act, and what stands before it.
func writeCoverage(configuration []byte, out io.Writer) error {
	var parsed struct {
		Apps struct {
			HTTP struct {
				Servers map[string]*caddyhttp.Server `json:"servers"`
			} `json:"http"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(configuration, &parsed); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	servers := parsed.Apps.HTTP.Servers
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		all, _ := coverageOf(caddy.Context{}, servers[name])
		for _, a := range all {
			if _, err := fmt.Fprintf(out, "%s %s\n          %s\n", strings.Join(servers[name].Listen, " "), a, a.says()); err != nil {
				return err
			}
		}
	}
	return nil
}

// says tells which requests come to the handler.
func (a covered) says() string {
	rules := "no rule"
	if len(a.rules) > 0 {
		rules = "the rules " + strings.Join(slices.Compact(slices.Sorted(slices.Values(namesOf(a.rules)))), ", ")
	}
	if a.by == nil {
		return "OPEN: " + rules + " and no redlock_require before it: a request that no matcher takes comes to it"
	}
	text := rules + " and redlock_require before it"
	for _, more := range []struct {
		when bool
		text string
	}{
		{a.by.DryRun, "OPEN: dry_run"},
		{!a.by.All, "GET, HEAD and OPTIONS without a body pass"},
		{len(a.by.Rules) > 0, "locks of " + strings.Join(a.by.Rules, ", ")},
		{len(a.by.Except) > 0, "except " + strings.Join(a.by.Except, ", ")},
		{a.by.OnMissingKey == middleware.Pass, "without a key, too"},
	} {
		if more.when {
			text += "; " + more.text
		}
	}
	return text
}
