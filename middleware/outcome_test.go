package middleware_test

import (
	"net/http"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A header distinguishes a duplicate from trouble: both are 409.
func TestOutcomeHeader(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "42")
	shown := serve(t, middleware.New(l, "{header.Order}", middleware.Rule{})(http.HandlerFunc(ok)))
	for order, want := range map[string]string{"42": "held", "": "missing_key", "43": ""} {
		if got := post(t, shown.URL, "Order", order).Header.Get("Redlock-Outcome"); got != want {
			t.Errorf("%q: %q, want %q", order, got, want)
		}
	}
}
