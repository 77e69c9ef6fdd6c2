package middleware_test

import (
	"crypto/rand"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestRememberedAndNotReleased: a response that a majority has stored is noted as remembered, although none confirms that it has freed
// the delivery then.
func TestRememberedAndNotReleased(t *testing.T) {
	t.Parallel()
	var long strings.Builder // than what goes with the command that frees a lock, although it is compressed
	for long.Len() < 20_000 {
		long.WriteString(rand.Text())
	}
	servers, n := redistest.Start(t, 3), &notes{}
	allow := func(rules ...any) {
		for _, s := range servers {
			if err := s.Client().Do(t.Context(), append([]any{"acl", "setuser", "default"}, rules...)...).Err(); err != nil {
				t.Error(err)
			}
		}
	}
	c := &cashier{answer: func(w http.ResponseWriter, _ *http.Request) {
		allow("-lrem", "-lpop") // which free a key
		_, _ = io.WriteString(w, long.String())
	}}
	server := serve(t, middleware.New(newLocker(t, redistest.URLs(servers), redlock.WithRestartGuard(0)), "", middleware.Rule{IdempotencyKey: "required", Remember: hour, Observer: n})(c))
	first := post(t, server.URL, "Idempotency-Key", "a")
	allow("+lrem", "+lpop")
	var repeat received
	eventually(t, "the masters vote again", func() bool {
		repeat = post(t, server.URL, "Idempotency-Key", "a")
		return repeat.StatusCode == http.StatusOK
	})
	requireReplay(t, repeat, first)
	c.requireRuns(t, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Equal(n.reasons, []middleware.Reason{""}) || n.remembered != 1 {
		t.Errorf("%d noted as remembered, with the reasons %q", n.remembered, n.reasons)
	}
}
