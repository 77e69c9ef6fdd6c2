package caddyredlock

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func init() {
	caddy.RegisterModule(Guard{})
	httpcaddyfile.RegisterHandlerDirective("redlock_guard", parseGuard)
	httpcaddyfile.RegisterDirectiveOrder("redlock_guard", httpcaddyfile.Before, "map") // before those that change the target
}

// Guard refuses, with 400, requests that the matchers of redlock may miss although an upstream serves them as others: with a target
// that doesn't begin with `/`, a path that only some servers clean, a path in the query or in a header, a method that isn't in upper case,
// or another method in a header or in the parameter `_method`.
type Guard struct{}

// CaddyModule returns the Caddy module information.
func (Guard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.redlock_guard", New: func() caddy.Module { return new(Guard) }}
}

// ServeHTTP serves the request unless it is refused.
func (Guard) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if err := middleware.CheckTarget(r); err != nil {
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
	return next.ServeHTTP(w, r)
}

// parseGuard reads "redlock_guard [<matcher>]".
func parseGuard(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the directive
	if h.NextArg() {
		return nil, h.ArgErr()
	}
	return Guard{}, nil
}
