package console

import (
	"log/slog"
	"net/http"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Option is a setting of the console.
type Option func(*handler)

// WithHosts allows further names in the header Host, beside localhost and the addresses of loopback. Give the names by which operators reach the
// console, without a port. A page of another site can have its own name lead to the console's address, and would be served as if it were the
// console's own. "*" allows every name. It is for a console behind a server that checks the name, or the user.
func WithHosts(names ...string) Option {
	return func(h *handler) {
		for _, name := range names {
			h.hosts = append(h.hosts, strings.ToLower(name))
		}
	}
}

// WithReadOnly makes the console refuse to release locks and to forget results. Its page has no buttons for that.
func WithReadOnly() Option { return func(h *handler) { h.readOnly = true } }

// WithLogger sets the log that gets a line for each lock that somebody releases by force, and each result that somebody makes the masters forget,
// whether that succeeds or not. The line says from where, who, which lock, and the result. Default: slog.Default, with logger=redlock.
func WithLogger(logger *slog.Logger) Option { return func(h *handler) { h.logger = logger } }

// WithUser says who has sent a request, as your authentication knows it, for the log. Without it, only the address is known.
func WithUser(user func(*http.Request) string) Option { return func(h *handler) { h.user = user } }

// New returns the handler. It asks for the lockers with each request, and closes none; a locker that is closed meanwhile does no harm. If there are
// several, the first one matters most, and is shown first.
//
// Mount it where only operators come: it shows keys, and ends locks. It asks for no password, so put your own authentication in front.
// It refuses requests that pages of other sites make a browser send, and hosts that it doesn't know: see WithHosts.
func New(lockers func() []*redlock.Locker, opts ...Option) http.Handler {
	h := &handler{lockers: lockers, logger: notices.Default(), user: func(*http.Request) string { return "" }}
	for _, opt := range opts {
		opt(h)
	}
	return h
}
