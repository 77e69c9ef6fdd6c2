package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// counts is an Observer that costs nothing itself.
type counts struct{ done atomic.Int64 }

func (*counts) Begin(string, middleware.Possible)           {}
func (*counts) Waits(string, int)                           {}
func (*counts) Acquired(string, time.Duration)              {}
func (*counts) Quota(string, bool, int64, int64)            {}
func (*counts) Passed(string, middleware.Outcome)           {}
func (c *counts) Remembered(string, int, middleware.Reason) {}

func (c *counts) Done(string, middleware.Outcome, time.Duration) { c.done.Add(1) }

// BenchmarkRequest measures what the middleware, with one master in memory, adds to a request.
func BenchmarkRequest(b *testing.B) {
	for name, rule := range map[string]middleware.Rule{
		"try":      {},
		"wait":     {Wait: bound},
		"shutdown": {Wait: bound, Shutdown: b.Context()},
		"max_hold": {MaxHold: time.Minute, TTL: longTTL},
		"dedupe":   {Dedupe: "{header.Id}"},
		"to_end":   {OnClientAbort: "run"},
		"observer": {Observer: new(counts)},
	} {
		b.Run(name, func(b *testing.B) {
			handler := middleware.New(newLocker(b, live[:1]), "order:{path.1:int}", rule)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			r := httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)
			r.Header.Set("Id", "1")
			w := httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(w, r)
			}
			if w.Code != http.StatusOK {
				b.Error(w.Code, w.Body)
			}
		})
	}
}
