package middleware_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestRequestOfHolder: a Locker tells for which request a key is held, without what may be secret, and all lines about a turn have its
// fence and the hash of its key.
func TestRequestOfHolder(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	var log safeBuffer
	l := newLocker(t, live)
	var keys []inspect.KeyStatus
	var fence uint64
	handler := orders(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		fence, _ = turn.Fence()
		keys = inspect.Keys(l, "")
		force(t, l, r)
		<-r.Context().Done()
	}), middleware.Rule{Name: "orders", Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	r := httptest.NewRequest(http.MethodPost, "/"+strings.Repeat("long", 100)+"?token=s3cret", nil)
	r.Header.Set("Order", "42")
	r.Header.Set("X-Request-Id", "r-1")
	r.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	handler.ServeHTTP(httptest.NewRecorder(), r)

	if len(keys) != 1 || keys[0].Request == nil {
		t.Fatalf("%+v", keys)
	}
	got := *keys[0].Request
	if path := "/" + strings.Repeat("long", 100)[:199] + "…"; got != (inspect.Request{Method: http.MethodPost, Path: path, ID: "r-1", TraceID: trace}) {
		t.Errorf("%+v", got)
	}
	lines := logged(t, &log)
	if len(lines) != 2 {
		t.Fatalf("%+v", lines)
	}
	for _, line := range lines {
		if line["key_hash"] != lockname.Hash("order:42") || line["fence"] != float64(fence) {
			t.Errorf("fence %d: %+v", fence, line)
		}
	}
	if text := log.String(); strings.Contains(text, "s3cret") || strings.Contains(text, "long") {
		t.Error(text)
	}
}

// TestClientOfHolder: who has sent a request is told where the rule says so, and the key of its delivery always.
func TestClientOfHolder(t *testing.T) {
	t.Parallel()
	alice := func(*http.Request) string { return "alice" }
	proxied := func(*http.Request) string { return "2001:db8::7" }
	for _, test := range []struct {
		rule middleware.Rule
		want string
	}{
		{middleware.Rule{User: alice}, ""},
		{middleware.Rule{ShowClient: true}, "192.0.2.1"},
		{middleware.Rule{ShowClient: true, User: alice}, "alice at 192.0.2.1"},
		{middleware.Rule{ShowClient: true, ClientAddress: proxied}, "2001:db8::7"},
		{middleware.Rule{ShowClient: true, ClientAddress: func(*http.Request) string { return "@" }, User: func(*http.Request) string { return "" }}, "@"},
		{middleware.Rule{ShowClient: true, User: func(*http.Request) string { return strings.Repeat("a", 70) }}, strings.Repeat("a", 64) + "… at 192.0.2.1"},
	} {
		l := newLocker(t, live)
		var keys []inspect.KeyStatus
		test.rule.Dedupe = "{header.Id}"
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Order", "42")
		r.Header.Set("Id", "1")
		orders(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { keys = inspect.Keys(l, "") }), test.rule).ServeHTTP(httptest.NewRecorder(), r)
		if len(keys) != 2 || keys[0].Key != "order:42" || keys[0].Request != keys[1].Request || keys[0].Request.Client != test.want || keys[0].Request.Delivery != keys[1].Key {
			t.Errorf("want %q: %+v", test.want, keys)
		}
	}
}
