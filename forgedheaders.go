package caddyredlock

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// register makes Caddy remove the headers that a rule sets from every request, even if no rule takes the request, because an upstream that
// finds such a header may rely on it. For the first rule of a server, register also checks the server's routes.
func (a *App) register(ctx caddy.Context, rule engine.Serializer) error {
	for _, name := range rule.UpstreamHeaders() {
		if !slices.ContainsFunc(a.ourHeaders, func(known string) bool { return strings.EqualFold(known, name) }) {
			a.ourHeaders = append(a.ourHeaders, name)
		}
	}
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return nil
	}
	if !a.checked[server] {
		if err := checkServer(ctx, server); err != nil {
			return err
		}
		a.checked[server] = true
		warnOfReads(ctx, server)
	}
	a.stripAll(ctx, server)
	return nil
}

// stripAll removes our headers from the requests of the server that is being loaded, and from requests of other servers where
// that is possible.
func (a *App) stripAll(ctx caddy.Context, loading *caddyhttp.Server) {
	if !a.strips[loading] {
		a.strips[loading] = a.newForged().standBefore(loading, loading.Routes, isLoading(loading.Routes))
		if loading.Errors != nil { // Caddy sends a request whose host doesn't fit its certificate directly to the error routes
			a.newForged().standBefore(loading, loading.Errors.Routes, isLoading(loading.Errors.Routes))
		}
	}
	for _, server := range httpServers(ctx) {
		if _, known := a.strips[server]; !known {
			a.strips[server] = a.newForged().standBeforeOther(server, server.Routes)
			if server.Errors != nil {
				a.newForged().standBeforeOther(server, server.Errors.Routes)
			}
		}
	}
}

// warnOfForged names the servers whose clients can send our headers to upstreams.
func (a *App) warnOfForged(ctx caddy.Context) {
	if len(a.ourHeaders) == 0 {
		return
	}
	for name, server := range httpServers(ctx) {
		if a.strips[server] {
			continue
		}
		if acting, _ := (walk{server: server}).acting(server.Routes, progress{}); acting != "" {
			ctx.Logger().Warn("clients can send the headers of rules to the upstreams of a server: put redlock_require into it, or remove them with request_header",
				zap.String("server", name), zap.Strings("listen", server.Listen), zap.Strings("headers", a.ourHeaders))
		}
	}
}

// httpServers returns the servers of a configuration, of which some may not be loaded yet.
func httpServers(ctx caddy.Context) map[string]*caddyhttp.Server {
	app, err := ctx.AppIfConfigured("http")
	if err != nil {
		return nil
	}
	return app.(*caddyhttp.App).Servers
}

// forgedHeaders removes headers that a client must not set. It is a matcher, because every request of a server passes the first matcher.
// A handler can't be added any more when a rule is loaded, because the other handlers of the server were loaded before, or are being
// loaded.
type forgedHeaders struct {
	names *[]string              // of all rules; it grows until the configuration is loaded
	sets  *caddyhttp.MatcherSets // the sets to which it was added as a set of its own; nil if it is in the set of other matchers
}

func (a *App) newForged() *forgedHeaders { return &forgedHeaders{names: &a.ourHeaders} }

// MatchWithError removes the headers. It never decides whether a route is taken: in a set of its own, it matches only if the route has no set of
// other matchers.
func (f *forgedHeaders) MatchWithError(r *http.Request) (bool, error) {
	middleware.StripHeaders(r, *f.names...)
	return f.alone(), nil
}

// alone reports whether no other matcher decides: it may have been added to a named route twice, for the error routes as well.
func (f *forgedHeaders) alone() bool {
	return f.sets == nil || !slices.ContainsFunc(*f.sets, func(set caddyhttp.MatcherSet) bool {
		_, ours := set[0].(*forgedHeaders)
		return !ours
	})
}

// standBeforeOther is standBefore for a server that may be loaded already, or later, because a map has a random order. The result is the
// same in both cases: a server without hosts whose first handler is no block of routes is left as it is.
func (f *forgedHeaders) standBeforeOther(server *caddyhttp.Server, routes caddyhttp.RouteList) bool {
	if len(routes) == 0 {
		return true
	}
	if first := routes[0]; len(first.MatcherSets) == 0 {
		if nodes := nodesOf(first); len(nodes) == 0 || nodes[0].Handler != "subroute" && nodes[0].Handler != "invoke" {
			return false
		}
	}
	return f.standBefore(server, routes[:1], isLoading(routes))
}

// standBefore makes the routes remove the headers before any of them sees a request. changeable says that a set of matchers can be
// added to the first route. A compiled route has copied the list of its sets, so only a set in the list can still change. Routes inside
// of subroutes and named routes are compiled for each request.
func (f *forgedHeaders) standBefore(server *caddyhttp.Server, routes caddyhttp.RouteList, changeable bool) bool {
	for i := range routes {
		sets := &routes[i].MatcherSets
		switch {
		case changeable:
			f.addTo(sets)
			return true
		case len(*sets) > 0:
			(*sets)[0] = append(caddyhttp.MatcherSet{f}, (*sets)[0]...)
			return true
		}
		for _, handler := range routes[i].Handlers {
			switch handler := handler.(type) {
			case *caddyhttp.Subroute:
				if f.standBefore(server, handler.Routes, true) {
					return true
				}
			case *caddyhttp.Invoke:
				if named := server.NamedRoutes[handler.Name]; named != nil {
					f.addTo(&named.MatcherSets) // a set of its own, because the route may still get other sets
					return true
				}
			}
		}
	}
	return false
}

func (f *forgedHeaders) addTo(sets *caddyhttp.MatcherSets) {
	*sets = append(caddyhttp.MatcherSets{{f}}, *sets...)
	f.sets = sets
}

// isLoading reports whether the handlers of some route are not loaded yet.
func isLoading(routes caddyhttp.RouteList) bool {
	return slices.ContainsFunc(routes, func(r caddyhttp.Route) bool { return len(r.HandlersRaw) > 0 })
}

var _ caddyhttp.RequestMatcherWithError = (*forgedHeaders)(nil)
