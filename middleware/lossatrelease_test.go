package middleware_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestLossFoundAtRelease: where only the release finds that the lock was lost, the Observer, the turn, the span and the log say so, as of a
// lock that is lost while the handler runs.
func TestLossFoundAtRelease(t *testing.T) {
	for name, rule := range map[string]middleware.Rule{
		"with a key":               {},
		"with a delivery":          {Dedupe: "{header.Delivery}"},
		"with a response":          {Dedupe: "{header.Delivery}", Remember: time.Hour},
		"held for some time after": {HoldAfterAbort: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var log safeBuffer
				logger := slog.New(slog.NewJSONHandler(&log, nil))
				l, err := redlock.New(net.Masters(), redlock.WithLogger(logger))
				if err != nil {
					t.Fatal(err)
				}
				n := &notes{}
				rule.Observer, rule.Logger, rule.Name = n, logger, "orders"
				lost := func(w http.ResponseWriter, r *http.Request) {
					turn, _ := middleware.TurnFromContext(r.Context())
					for _, s := range net.Servers {
						s.Give(turn.Key, "another", time.Hour)
					}
					if rule.HoldAfterAbort > 0 {
						w.WriteHeader(http.StatusBadGateway)
					}
				}
				ctx, end := startSpan(t)
				ctx, noted := middleware.NoteTurn(ctx)
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
				r.Header.Set("Order", "42")
				r.Header.Set("Delivery", "7")
				orders(l, lost, rule).ServeHTTP(httptest.NewRecorder(), r)
				eventually(t, "the lock is released", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return len(n.done) > 0 })
				spans := end()
				if err := l.Close(); err != nil { // which waits for the log
					t.Error(err)
				}
				n.require(t, 0, 1, done{"orders", "lost", true})
				const detail = "the masters had lost the lock before it was released"
				if turn, _ := noted(); turn.Outcome != middleware.OutcomeLost || turn.Detail != detail {
					t.Errorf("the turn has %q: %q", turn.Outcome, turn.Detail)
				}
				events := spans[len(spans)-1].Events
				if i := slices.IndexFunc(events, func(e trace.Event) bool { return e.Name == "redlock.lost" }); len(events) != 1 || i < 0 || attributeOf(events[i].Attributes, "redlock.detail") != detail {
					t.Errorf("events %v, want one of the loss", events)
				}
				for _, message := range []string{
					"lease lost, as its release has found: another process may have held this lock while its holder was still working",
					"lock was lost before the request ended: another request with the same key may have run at the same time",
				} {
					found := 0
					for _, line := range logged(t, &log) {
						if line["msg"] == message && line["key_hash"] != nil && line["fence"] != nil {
							found++
						}
					}
					if found != 1 {
						t.Errorf("%d lines %q, want one, in\n%s", found, message, log.String())
					}
				}
			})
		})
	}
}
