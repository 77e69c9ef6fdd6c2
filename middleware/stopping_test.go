package middleware_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// A request whose first attempt has no reply yet when the server is about to stop is refused as one that waits is.
func TestShutdownDuringFirstAttempt(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	l := newLocker(t, redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(10*bound), redlock.WithTTL(20*bound), redlock.WithMaxTTL(20*bound))
	lock, err := l.TryLock(t.Context(), "other") // the connections are made
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	for _, s := range servers {
		s.Pause()
		defer s.Resume()
	}
	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	server := serve(t, orders(l, ok, middleware.Rule{Wait: 10 * bound, Shutdown: stopping}))
	got := make(chan received, 1)
	go func() { got <- post(t, server.URL, "Order", "42") }()
	requireWaiting(t, l)
	stop()
	requireProblem(t, receive(t, got, "a refusal"), http.StatusServiceUnavailable, "stopping")
}
