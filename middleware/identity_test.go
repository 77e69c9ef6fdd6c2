package middleware_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestRequestOfHolder: a Locker tells for which request a key is held, without what may be secret, and all lines about a turn have its
// fence and the hash of its key.
func TestRequestOfHolder(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	var log safeBuffer
	l := newLocker(t, live)
	var keys []redlock.KeyStatus
	var fence uint64
	handler := orders(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		fence, _ = turn.Fence()
		keys = l.Keys("")
		<-r.Context().Done() // for max_hold
	}), middleware.Rule{Name: "orders", MaxHold: 50 * time.Millisecond, Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	r := httptest.NewRequest(http.MethodPost, "/"+strings.Repeat("long", 100)+"?token=s3cret", nil)
	r.Header.Set("Order", "42")
	r.Header.Set("X-Request-Id", "r-1")
	r.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	handler.ServeHTTP(httptest.NewRecorder(), r)

	if len(keys) != 1 || keys[0].Request == nil {
		t.Fatalf("%+v", keys)
	}
	got := *keys[0].Request
	if path := "/" + strings.Repeat("long", 100)[:199] + "…"; got != (redlock.Request{Method: http.MethodPost, Path: path, ID: "r-1", TraceID: trace}) {
		t.Errorf("%+v", got)
	}
	lines := logged(t, &log)
	if len(lines) != 2 {
		t.Fatalf("%+v", lines)
	}
	for _, line := range lines {
		if line["key_hash"] != redlock.KeyHash("order:42") || line["fence"] != float64(fence) {
			t.Errorf("fence %d: %+v", fence, line)
		}
	}
	if text := log.String(); strings.Contains(text, "s3cret") || strings.Contains(text, "long") {
		t.Error(text)
	}
}
