package caddyredlock

import (
	"log/slog"
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
	handler := http.StripPrefix("/redlock", console.New(lockersInUse,
		console.WithHosts("*"), // the endpoint checks it
		console.WithLogger(slog.New(currentLog{})), console.WithUser(certified)))
	return []caddy.AdminRoute{{
		Pattern: "/redlock/",
		Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
			handler.ServeHTTP(w, r)
			return nil
		}),
	}}
}

// certified returns whose certificate a request to a remote admin endpoint has come with.
func certified(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	return r.TLS.PeerCertificates[0].Subject.String()
}

var _ caddy.AdminRouter = adminAPI{}
