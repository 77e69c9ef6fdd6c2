package middleware_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
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

// lateClient takes nothing of a response before done is closed, which is when the handler is done. So a buffered response is in memory as a whole, and
// its allocations are the same each time. lateClient has the interfaces of the writers of net/http's server.
type lateClient struct {
	*httptest.ResponseRecorder
	done chan struct{}
}

func (c *lateClient) Write(p []byte) (int, error) {
	<-c.done
	return len(p), nil
}

func (*lateClient) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}
func (*lateClient) ReadFrom(io.Reader) (int64, error) { return 0, http.ErrNotSupported }
func (*lateClient) CloseNotify() <-chan bool          { return nil }

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
	const key = "order:{path.1:int}"
	once := middleware.Rule{IdempotencyKey: "required", Remember: hour}
	buffered := middleware.Rule{BufferResponse: new(true), MaxBody: 16 << 20, BodyBudget: middleware.NewBudget(1 << 30)}
	json := `{"order":{"id":42},"text":"` + strings.Repeat("x", 1000) + `"}`
	for name, c := range map[string]struct {
		key      string
		rule     middleware.Rule
		body     string
		fresh    bool // each request has an ID of its own
		response int  // bytes
	}{
		"try":                    {key: key},
		"wait":                   {key: key, rule: middleware.Rule{Wait: bound}},
		"shutdown":               {key: key, rule: middleware.Rule{Wait: bound, Shutdown: b.Context()}},
		"max_hold":               {key: key, rule: middleware.Rule{MaxHold: time.Minute, TTL: longTTL}},
		"to_end":                 {key: key, rule: middleware.Rule{OnClientAbort: "run"}},
		"observer":               {key: key, rule: middleware.Rule{Observer: new(counts)}},
		"json":                   {key: "order:{json.order.id:int}", rule: middleware.Rule{BufferBody: new(true)}, body: json},
		"dedupe":                 {key: key, rule: middleware.Rule{Dedupe: "{header.Idempotency-Key}"}},
		"remember":               {rule: once, fresh: true, response: 100},
		"remember with a key":    {key: key, rule: once, fresh: true, response: 100},
		"replay":                 {rule: once, response: 100},
		"buffer_response":        {key: key, rule: buffered, response: 100},
		"buffer_response 1 MiB":  {key: key, rule: buffered, response: 1 << 20},
		"buffer_response 10 MiB": {key: key, rule: buffered, response: 10 << 20},
	} {
		b.Run(name, func(b *testing.B) {
			write := bytes.Repeat([]byte("x"), min(32<<10, c.response))
			w, buffers := &lateClient{ResponseRecorder: httptest.NewRecorder()}, c.rule.BufferResponse != nil
			handler := middleware.New(newLocker(b, live[:1]), c.key, c.rule)(http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
				for left := c.response; left > 0; left -= len(write) {
					_, _ = to.Write(write)
				}
				if buffers {
					close(w.done)
				}
			}))
			r := httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)
			r.Header = http.Header{"Idempotency-Key": {"1"}, "Content-Type": {jsonType}}
			body := strings.NewReader(c.body)
			unread := io.NopCloser(body)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if c.fresh {
					r.Header["Idempotency-Key"][0] = strconv.Itoa(i)
				}
				if c.body != "" {
					body.Reset(c.body)
					r.Body, r.ContentLength = unread, body.Size()
				}
				if w.done = make(chan struct{}); !buffers {
					close(w.done)
				}
				handler.ServeHTTP(w, r)
			}
			if w.Code != http.StatusOK {
				b.Error(w.Code)
			}
			if name == "replay" && w.Header().Get("Idempotency-Replayed") == "" {
				b.Error("not replayed")
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
