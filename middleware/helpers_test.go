package middleware_test

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the log of Lockers without their own
	goleak.VerifyTestMain(m)
}

const (
	// bound is the time for what should happen at once, even on a busy machine.
	bound = time.Minute
	// calm is a time-out that keeps a master on a busy machine from being taken for one that has failed.
	calm = bound / 6
	// longTTL is for locks that must not expire while a test waits for their release.
	longTTL = 3 * bound
)

var (
	live = []string{"memory://a", "memory://b", "memory://c"}
	dead = []string{"redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"}
)

func newLocker(t testing.TB, urls []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(urls, append([]redlock.Option{redlock.WithTimeout(calm), redlock.WithTTL(longTTL), redlock.WithMaxTTL(longTTL)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close locker: %v", err)
		}
	})
	return l
}

// hold takes a lock until the end of the test.
func hold(t *testing.T, l *redlock.Locker, key string) {
	t.Helper()
	lock, err := l.TryLock(t.Context(), key)
	if err != nil {
		t.Fatalf("lock %q: %v", key, err)
	}
	t.Cleanup(func() { _ = lock.Unlock() })
}

// force takes the lock of a request away from its handler, as an operator does.
func force(t *testing.T, l *redlock.Locker, r *http.Request) {
	t.Helper()
	turn, _ := middleware.TurnFromContext(r.Context())
	if err := inspect.Force(context.Background(), l, turn.Key, 0, turn.Lock.Fence()); err != nil {
		t.Error(err)
	}
}

// requireFree fails if the key is not freed well before its TTL.
func requireFree(t *testing.T, l *redlock.Locker, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	lock, err := l.Lock(ctx, key)
	if err != nil {
		t.Fatalf("key %q was not released: %v", key, err)
	}
	if err := lock.Unlock(); err != nil {
		t.Errorf("unlock %q: %v", key, err)
	}
}

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handlers that panic
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// serveInside has a handler serve a request with headers, without a network.
func serveInside(h http.Handler, headers ...string) received {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return received{w.Result(), w.Body.String()}
}

// received is a response with its body.
type received struct {
	*http.Response
	body string
}

func do(t *testing.T, req *http.Request) received {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return received{resp, string(body)}
}

func newRequest(t *testing.T, url string, headers ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return req
}

func post(t *testing.T, url string, headers ...string) received {
	t.Helper()
	return do(t, newRequest(t, url, headers...))
}

// receive waits for a value, but not for ever.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(bound):
		t.Fatalf("%s: nothing within %v", what, bound)
		panic("unreachable")
	}
}

// requireWaiting waits until a call waits for a lock.
func requireWaiting(t *testing.T, l *redlock.Locker) {
	t.Helper()
	for deadline := time.Now().Add(bound); l.Status().Waiting == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits after %v", bound)
		}
	}
}

// orders serializes requests by the header Order.
func orders(l *redlock.Locker, h http.HandlerFunc, rule middleware.Rule) http.Handler {
	return middleware.New(l, "order:{header.Order}", rule)(h)
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }

// wrong returns why a rule can't be used, or nil.
func wrong(rule middleware.Rule) error {
	rule.Keys = append(rule.Keys, "k")
	_, err := middleware.Compile(rule)
	return err
}

type safeBuffer = redistest.Log

var eventually = redistest.Eventually

// of returns New for a Locker and a template, without its rule.
func of(l *redlock.Locker, template string) func(middleware.Rule) func(http.Handler) http.Handler {
	return func(rule middleware.Rule) func(http.Handler) http.Handler {
		return middleware.New(l, template, rule)
	}
}

// ofFunc is of for NewFunc.
func ofFunc(l *redlock.Locker, key middleware.KeyFunc) func(middleware.Rule) func(http.Handler) http.Handler {
	return func(rule middleware.Rule) func(http.Handler) http.Handler {
		return middleware.NewFunc(l, key, rule)
	}
}
