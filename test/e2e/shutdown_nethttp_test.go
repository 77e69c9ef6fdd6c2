package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// netHTTP is a net/http server with 50 requests that hold keys.
type netHTTP struct {
	locker  *redlock.Locker
	server  *httptest.Server
	b       *backend
	release func()
	holders func() []received
	ended   chan error // why the contexts of the handlers have ended
}

func newNetHTTP(t *testing.T, servers []*redistest.Server) *netHTTP {
	t.Helper()
	s := &netHTTP{locker: neverLocker(t, servers), ended: make(chan error, holders)}
	s.b, s.release = newHeldBackend(t)
	stopping, stop := context.WithCancel(context.Background())
	serialize := middleware.New(s.locker, "order:{path.1}", middleware.Rule{Wait: time.Minute, Shutdown: stopping})
	s.server = httptest.NewServer(serialize(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		unhook := context.AfterFunc(r.Context(), func() { s.ended <- context.Cause(r.Context()) })
		s.b.work()
		unhook()
		if r.Context().Err() == nil {
			s.b.ServeHTTP(w, r)
		}
	})))
	t.Cleanup(s.server.Close)
	s.server.Config.RegisterOnShutdown(stop)
	urls := make([]string, holders)
	for i := range urls {
		urls[i] = fmt.Sprintf("%s/orders/%d/pay", s.server.URL, i)
	}
	s.holders = postAll(t, urls...)
	t.Cleanup(s.release)
	requireLocks(t, servers)
	eventually(t, "all requests have their locks", func() bool { return s.locker.Status().Held == holders })
	return s
}

func neverLocker(t *testing.T, servers []*redistest.Server) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(redistest.URLs(servers), redlock.WithTimeout(calm), redlock.WithMaxTTL(never), redlock.WithTTL(never), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// After Shutdown, and then Close, all requests that held a key have been served, those that waited have been refused, and nothing is left.
func TestNetHTTPShutdownThenClose(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	s := newNetHTTP(t, servers)
	waiting := postAll(t, s.server.URL+"/orders/1/pay", s.server.URL+"/orders/2/pay")
	eventually(t, "two requests wait", func() bool { return s.locker.Status().Waiting == 2 })
	down := make(chan error, 1)
	go func() { down <- s.server.Config.Shutdown(t.Context()) }()
	for _, a := range waiting() {
		requireStatus(t, a, http.StatusServiceUnavailable)
	}
	requireLocks(t, servers)
	s.release()
	requireServed(t, s.holders, servers)
	if err := within(t, down, "the end of Shutdown"); err != nil {
		t.Error(err)
	}
	if err := s.locker.Close(); err != nil {
		t.Error(err)
	}
	requireConnections(t, servers, 0)
}

// If Shutdown gives up, the requests that still run keep their keys: as long as the Locker isn't closed, nobody else gets them.
func TestNetHTTPShutdownGivesUp(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	s := newNetHTTP(t, servers)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.server.Config.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	if _, err := neverLocker(t, servers).TryLock(t.Context(), "order:1"); !errors.Is(err, redlock.ErrHeld) {
		t.Errorf("another process: %v, want ErrHeld", err)
	}
	s.release()
	requireServed(t, s.holders, servers)
}

// Close without Shutdown ends the contexts of the handlers and frees their keys at once: a handler that is slow to stop runs beside
// the next holder. The clients are told that the outcome is unknown.
func TestNetHTTPCloseWithoutShutdown(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	s := newNetHTTP(t, servers)
	if err := s.locker.Close(); err != nil {
		t.Error(err)
	}
	for range holders {
		if err := within(t, s.ended, "the end of a handler's context"); !errors.Is(err, redlock.ErrClosed) {
			t.Errorf("a handler's context has ended with %v", err)
		}
	}
	if _, err := neverLocker(t, servers).TryLock(t.Context(), "order:1"); err != nil {
		t.Errorf("another process: %v", err)
	}
	s.release()
	for _, a := range s.holders() {
		if a.status != http.StatusInternalServerError || a.header.Get("Redlock-Outcome") != "lost" {
			t.Errorf("status %d, outcome %q; want 500, lost", a.status, a.header.Get("Redlock-Outcome"))
		}
	}
}
