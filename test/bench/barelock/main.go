// Barelock is Caddy with redlock, and beside it a handler that does nothing but lock and unlock: what a
// request costs more with redlock than with that is the module's own.
package main

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-redlock/caddy-redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Handler holds a lock on the request's path. In the Caddyfile: bare_lock [<matcher>] <masters...>
type Handler struct {
	Masters []string `json:"masters"`

	locker *redlock.Locker
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bare_lock", New: func() caddy.Module { return new(Handler) }}
}

// Provision connects to the masters.
func (h *Handler) Provision(caddy.Context) error {
	var err error
	h.locker, err = redlock.Open(h.Masters, redlock.WithRestartGuard(0))
	return err
}

// Cleanup closes the masters.
func (h *Handler) Cleanup() error { return h.locker.Close() }

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	lock, err := h.locker.TryLock(r.Context(), r.URL.Path)
	if err != nil {
		return caddyhttp.Error(http.StatusLocked, err)
	}
	defer func() { _ = lock.Unlock() }()
	return next.ServeHTTP(w, r)
}

func main() {
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterHandlerDirective("bare_lock", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next() // the name
		return &Handler{Masters: h.RemainingArgs()}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("bare_lock", httpcaddyfile.After, "request_header")
	caddycmd.Main()
}
