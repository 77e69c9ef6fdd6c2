package console

import (
	"context"
	"net/http"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// asOperator returns the context of a request with its sender, which the log of the holder shows.
func (h *handler) asOperator(r *http.Request) context.Context {
	who := r.RemoteAddr
	if user := h.user(r); user != "" {
		who = user + " at " + who
	}
	return inspect.AskedBy(r.Context(), who)
}

// audit logs an action of an operator, even if it failed.
func (h *handler) audit(r *http.Request, what, key string, failure *Problem, more ...any) {
	result := "done"
	if failure != nil {
		result = failure.Title
	}
	args := append([]any{"key_hash", lockname.Hash(key)}, more...)
	args = append(args, "result", result, "from", r.RemoteAddr)
	if user := h.user(r); user != "" {
		args = append(args, "user", user)
	}
	h.logger.WarnContext(r.Context(), what, args...)
}
