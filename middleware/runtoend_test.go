package middleware_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const manyBytes = 16 << 20 // more than the connections buffer

// busyUpstream begins to answer, and continues on a signal with more than the connections buffer, so that somebody must read
// it. Then it waits before it sends the last byte, so that nobody has the whole response earlier.
type busyUpstream struct {
	*httptest.Server
	goOn, end chan bool
	written   chan error
}

func newBusyUpstream(t *testing.T) *busyUpstream {
	u := &busyUpstream{goOn: make(chan bool), end: make(chan bool), written: make(chan error, 1)}
	u.Server = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := []byte(strings.Repeat("x", 64<<10))
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", fmt.Sprint(len(chunk)+manyBytes+1))
		}
		_, err := w.Write(chunk)
		_ = http.NewResponseController(w).Flush()
		<-u.goOn
		for n := 0; n < manyBytes && err == nil; n += len(chunk) {
			_, err = w.Write(chunk)
		}
		u.written <- err
		<-u.end
		_, _ = w.Write(chunk[:1])
	}))
	return u
}

// A request that waits for an upstream waits for its end, even if its client has left.
func TestUpstreamIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/chunked", "/length"} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for name, handler := range map[string]func(*busyUpstream) http.HandlerFunc{
				"proxy": func(u *busyUpstream) http.HandlerFunc {
					address, _ := url.Parse(u.URL)
					return (&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address) }}).ServeHTTP
				},
				"copy": func(u *busyUpstream) http.HandlerFunc { // io.Copy finds io.ReaderFrom
					return func(w http.ResponseWriter, r *http.Request) {
						request, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, u.URL+r.URL.Path, nil)
						response, err := http.DefaultClient.Do(request)
						if err != nil {
							t.Error(err)
							return
						}
						defer func() { _ = response.Body.Close() }()
						w.Header().Set("Content-Length", response.Header.Get("Content-Length"))
						_ = http.NewResponseController(w).Flush()
						_, _ = io.Copy(w, response.Body)
					}
				},
			} {
				t.Run(name+path+" "+protocol, func(t *testing.T) {
					upstream := newBusyUpstream(t)
					testReadToItsEnd(t, upstream, handler(upstream), path, protocol)
				})
			}
		}
	}
}

func testReadToItsEnd(t *testing.T, upstream *busyUpstream, handler http.HandlerFunc, path, protocol string) {
	l := newLocker(t, live)
	gone := make(chan struct{})
	locked := orders(l, handler, middleware.Rule{OnClientAbort: "run"})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ended := r.Context().Done()
		go func() {
			<-ended
			close(gone)
		}()
		if r.Proto != protocol {
			t.Errorf("the client speaks %s, want %s", r.Proto, protocol)
		}
		locked.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = protocol == "HTTP/2.0"
	server.StartTLS()
	t.Cleanup(server.Close)
	response, err := server.Client().Do(newRequest(t, server.URL+path, "Order", "42"))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close() // the client leaves
	receive(t, gone, "the server sees that the client has left")
	close(upstream.goOn)
	if err := receive(t, upstream.written, "the upstream"); err != nil {
		t.Errorf("the upstream was left: %v", err)
	}
	if _, err := l.TryLock(t.Context(), "order:42"); !errors.Is(err, redlock.ErrHeld) {
		t.Errorf("the key, while the upstream is at work: %v", err)
	}
	close(upstream.end)
	requireFree(t, l, "order:42")
}

// A handler gets the errors that it has caused itself, even if it runs to its end.
func TestErrorsOfWrites(t *testing.T) {
	t.Parallel()
	server := serve(t, orders(newLocker(t, live), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1")
		if _, err := io.WriteString(w, "12"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("more than announced: %v", err)
		}
		_, _ = io.WriteString(w, "1")
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(w, "1"); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("behind Hijack: %v", err)
		}
	}, middleware.Rule{OnClientAbort: "run"}))
	if response, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42")); err == nil {
		_ = response.Body.Close()
	}
}

// A client that doesn't read its response holds the key for max_hold at most, although the handler is stuck.
func TestMaxHoldOfSlowReader(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]middleware.Rule{"cancel": {OnClientAbort: middleware.Cancel}, "run to end": {}} {
		t.Run(name, func(t *testing.T) {
			rule.MaxHold = time.Second
			l := newLocker(t, live)
			begun, done := make(chan bool), make(chan bool)
			server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
				defer close(done)
				close(begun)
				for chunk := make([]byte, 1<<20); r.Context().Err() == nil; {
					_, _ = w.Write(chunk)
				}
				_, _ = w.Write(make([]byte, manyBytes)) // it ignores its context
			}, rule))
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\n\r\n")
			receive(t, begun, "the handler")
			requireFree(t, l, "order:42")
			select {
			case <-done:
				t.Error("the handler was not stuck")
			default:
			}
			_ = conn.Close()
			receive(t, done, "the end of the handler")
		})
	}
}
