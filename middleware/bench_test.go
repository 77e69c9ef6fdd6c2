package middleware_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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

// http1Recorder has the interfaces of the writers of net/http's server.
type http1Recorder struct{ *httptest.ResponseRecorder }

func (http1Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}
func (r http1Recorder) ReadFrom(src io.Reader) (int64, error) { return r.Body.ReadFrom(src) }
func (http1Recorder) CloseNotify() <-chan bool                { return nil }

// BenchmarkRequest measures what the middleware, with one master in memory, adds to a request; "lock" is the lock alone.
func BenchmarkRequest(b *testing.B) {
	b.Run("lock", func(b *testing.B) {
		locker := newLocker(b, live[:1])
		b.ReportAllocs()
		for b.Loop() {
			lock, err := locker.TryLock(b.Context(), "order:42")
			if err != nil {
				b.Fatal(err)
			}
			if err := lock.Unlock(); err != nil {
				b.Fatal(err)
			}
		}
	})
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
			w := http1Recorder{httptest.NewRecorder()}
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

// BenchmarkBody measures requests with a body over HTTP, whose handler reads it: without a rule, and with rules that read the body first.
func BenchmarkBody(b *testing.B) {
	read := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	for _, size := range []int{1 << 10, 100 << 10, 1<<20 - 100} {
		body := `{"id":42,"text":"` + strings.Repeat("x", size) + `"}`
		for _, rule := range []struct {
			name    string
			handler http.Handler
		}{
			{"plain", read},
			{"path", middleware.New(newLocker(b, live[:1]), "{path.1}", middleware.Rule{})(read)},
			{"buffer_body", middleware.New(newLocker(b, live[:1]), "{path.1}", middleware.Rule{BufferBody: new(true)})(read)},
			{"key", middleware.New(newLocker(b, live[:1]), "{body.id}", middleware.Rule{})(read)},
		} {
			b.Run(fmt.Sprintf("%d/%s", size, rule.name), func(b *testing.B) {
				server := httptest.NewServer(rule.handler)
				defer server.Close()
				b.ReportAllocs()
				for b.Loop() {
					r, err := http.Post(server.URL+"/orders/42", "application/json", strings.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					_ = r.Body.Close()
					if r.StatusCode != http.StatusOK {
						b.Fatal(r.Status)
					}
				}
			})
		}
	}
}
