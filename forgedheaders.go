package caddyredlock

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// register has the server of a rule remove the headers that the rule sets from each request, whether a rule takes it or not: an upstream
// that finds one may rely on it. The first rule of a server has its routes checked as well.
func (a *App) register(ctx caddy.Context, rule *middleware.Serializer) error {
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return nil
	}
	forged := a.forged[server]
	if forged == nil {
		if err := checkServer(ctx, server); err != nil {
			return err
		}
		forged = new(forgedHeaders)
		if !forged.standBefore(server, server.Routes, isLoading(server.Routes)) {
			ctx.Logger().Warn("clients can send the headers of the rule to the upstreams of requests that it doesn't take, as its server has rules only for errors: remove them, with request_header",
				zap.String("rule", rule.Rule().Name), zap.Strings("headers", rule.UpstreamHeaders()))
		}
		a.forged[server] = forged
	}
	for _, name := range rule.UpstreamHeaders() {
		if !slices.ContainsFunc(forged.names, func(known string) bool { return strings.EqualFold(known, name) }) {
			forged.names = append(forged.names, name)
		}
	}
	return nil
}

// forgedHeaders removes headers that a client must not set. It is a matcher, as the first matcher of a server is the one place that each
// of its requests comes through: a rule is loaded amid the handlers of its server, or after them, when they can't be changed any more.
type forgedHeaders struct {
	names []string
	sets  *caddyhttp.MatcherSets // to which it was added as a set of its own; nil if it is in another one
}

// MatchWithError removes the headers. It decides nothing: in a set of its own it only matches where there is no other set.
func (f *forgedHeaders) MatchWithError(r *http.Request) (bool, error) {
	middleware.StripHeaders(r, f.names...)
	return f.sets == nil || len(*f.sets) == 1, nil
}

// standBefore has the headers removed before any of these routes sees a request. Those that are compiled have copies of their matchers,
// whose sets are shared; what is inside of subroutes and named routes is only compiled for each request.
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
					f.addTo(&named.MatcherSets) // it may get others yet
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
