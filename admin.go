package caddyredlock

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-redlock/caddy-redlock/console"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI is the console at /redlock/ of Caddy's admin endpoint, under the endpoint's own access rules. It is there
// before there is a redlock app, and answers then that no lock is configured.
type adminAPI struct{}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.redlock",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

// Routes returns the one route below which everything is.
func (adminAPI) Routes() []caddy.AdminRoute {
	handler := http.StripPrefix("/redlock", console.New(lockersInUse))
	return []caddy.AdminRoute{{
		Pattern: "/redlock/",
		Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			handler.ServeHTTP(w, r)
			return nil
		}),
	}}
}

var _ caddy.AdminRouter = adminAPI{}
