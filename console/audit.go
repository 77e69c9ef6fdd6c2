package console

import (
	"context"
	"net/http"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// asOperator returns the context of a request with its sender, which the log of the holder shows.
func (h *handler) asOperator(r *http.Request) context.Context {
	who := from(r)
	if user := h.user(r); user != "" {
		who = user + " at " + who
	}
	return inspect.AskedBy(r.Context(), who)
}

// from returns the address of the sender. A client of a Unix socket has none.
func from(r *http.Request) string {
	if r.RemoteAddr == "" || r.RemoteAddr == "@" {
		return "a user of the Unix socket"
	}
	return r.RemoteAddr
}

// audit logs an action of an operator, even if it failed.
func (h *handler) audit(r *http.Request, what, key string, failure *Problem, more ...any) {
	result := "done"
	if failure != nil {
		result = failure.Title
	}
	args := append([]any{"key_hash", lockname.Hash(key)}, more...)
	args = append(args, "result", result, "from", from(r))
	if user := h.user(r); user != "" {
		args = append(args, "user", user)
	}
	h.logger.WarnContext(r.Context(), what, args...)
}
