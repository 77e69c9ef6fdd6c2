// Package slowbackend is a Caddy handler that answers after a delay: a backend to try redlock with.
package slowbackend

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterHandlerDirective("slow_backend", parse)
	httpcaddyfile.RegisterDirectiveOrder("slow_backend", httpcaddyfile.Before, "respond")
}

// Handler answers each request with 200 after a delay.
type Handler struct {
	// How long a request takes. Default: 0.
	Takes caddy.Duration `json:"takes,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.slow_backend",
		New: func() caddy.Module { return new(Handler) },
	}
}

// ServeHTTP waits, and then answers unless the client has left.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	timer := time.NewTimer(time.Duration(h.Takes))
	defer timer.Stop()
	select {
	case <-timer.C:
		_, err := fmt.Fprintf(w, "done: %s %s\n", r.Method, r.URL.Path)
		return err
	case <-r.Context().Done():
		return r.Context().Err()
	}
}

// parse reads "slow_backend <duration>".
func parse(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the directive
	var text string
	if !h.AllArgs(&text) {
		return nil, h.ArgErr()
	}
	takes, err := caddy.ParseDuration(text)
	if err != nil {
		return nil, h.WrapErr(err)
	}
	return &Handler{Takes: caddy.Duration(takes)}, nil
}

var _ caddyhttp.MiddlewareHandler = (*Handler)(nil)
