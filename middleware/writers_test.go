package middleware_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A client that has the whole response can send its next request, because the lock is free, unless the handler has flushed it.
func TestResponseEndsBehindTheLock(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789", 50_000)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	length := func(w http.ResponseWriter) { w.Header().Set("Content-Length", strconv.Itoa(len(large))) }
	handlers := map[string]http.HandlerFunc{
		"one write": func(w http.ResponseWriter, _ *http.Request) {
			length(w)
			_, _ = io.WriteString(w, large)
		},
		"small writes": func(w http.ResponseWriter, _ *http.Request) {
			length(w)
			for i := 0; i < len(large); i += 1000 {
				_, _ = w.Write([]byte(large[i : i+1000]))
			}
		},
		"a copy": func(w http.ResponseWriter, _ *http.Request) {
			length(w)
			if n, err := io.Copy(w, strings.NewReader(large)); int(n) != len(large) || err != nil {
				t.Errorf("copied %d: %v", n, err)
			}
		},
		"a file": func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, file) },
		"no length": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, large)
		},
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			length(w)
			_, _ = io.WriteString(w, large)
			_ = http.NewResponseController(w).Flush()
		},
	}
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for name, handler := range handlers {
			for _, rule := range []middleware.Rule{{OnClientAbort: middleware.Cancel}, {}} {
				t.Run(fmt.Sprint(protocol, " ", name, " ", rule.OnClientAbort), func(t *testing.T) {
					l := newLocker(t, live)
					got := make(chan bool)
					server := httptest.NewUnstartedServer(orders(l, func(w http.ResponseWriter, r *http.Request) {
						handler(w, r)
						select {
						case <-got:
							if name != "flushed" {
								t.Error("the client has the whole response, and the lock is held")
							}
						case <-time.After(20 * time.Millisecond):
						}
					}, rule))
					server.EnableHTTP2 = protocol == "HTTP/2.0"
					server.StartTLS()
					t.Cleanup(server.Close)
					for range 3 {
						req := newRequest(t, server.URL, "Order", "42")
						resp, err := server.Client().Do(req)
						if err != nil {
							t.Fatal(err)
						}
						body, err := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						if resp.Proto != protocol || resp.StatusCode != http.StatusOK || string(body) != large || err != nil {
							t.Fatalf("%s %d, %d bytes, %v", resp.Proto, resp.StatusCode, len(body), err)
						}
						select {
						case got <- true:
						default:
						}
						if name == "flushed" {
							requireFree(t, l, "order:42")
							continue
						}
						lock, err := l.TryLock(t.Context(), "order:42")
						if err != nil {
							t.Fatalf("the response is there, and the lock not free: %v", err)
						}
						_ = lock.Unlock()
					}
				})
			}
		}
	}
}

// A handler that writes less or more than it declared gets the server's error, as without the middleware.
func TestWrongLength(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for _, sent := range []int{9, 10, 11} {
		server := serve(t, orders(l, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			first, err := io.WriteString(w, strings.Repeat("x", min(sent, 10)))
			if first != min(sent, 10) || err != nil {
				t.Errorf("%d bytes: %d %v", sent, first, err)
			}
			if sent > 10 {
				if _, err = io.WriteString(w, "x"); err != http.ErrContentLength {
					t.Errorf("%d bytes: %v", sent, err)
				}
			}
		}, middleware.Rule{}))
		resp, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if len(body) != min(sent, 10) || (err == nil) != (sent >= 10) {
			t.Errorf("%d bytes: the client has %d, %v", sent, len(body), err)
		}
	}
}

// A writer has the same optional interfaces as without the middleware.
func TestInterfacesAreThose(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	describe := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, flusher := w.(http.Flusher)
		_, hijacker := w.(http.Hijacker)
		_, pusher := w.(http.Pusher)
		_, readerFrom := w.(io.ReaderFrom)
		_, stringWriter := w.(io.StringWriter)
		c := http.NewResponseController(w)
		_, _ = fmt.Fprint(w, flusher, hijacker, pusher, readerFrom, stringWriter, c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{}), c.EnableFullDuplex(), c.Flush())
	})
	plainWriter := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
		})
	}
	for name, around := range map[string]func(http.Handler) http.Handler{
		"HTTP/1.1": func(h http.Handler) http.Handler { return h },
		"HTTP/2.0": func(h http.Handler) http.Handler { return h },
		"timeout":  func(h http.Handler) http.Handler { return http.TimeoutHandler(h, bound, "") },
		"plain":    plainWriter,
	} {
		ask := func(h http.Handler) string {
			server := httptest.NewUnstartedServer(around(h))
			server.EnableHTTP2 = name == "HTTP/2.0"
			server.StartTLS()
			t.Cleanup(server.Close)
			resp, err := server.Client().Do(newRequest(t, server.URL, "Order", "42"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			return fmt.Sprint(string(body), err)
		}
		if with, without := ask(middleware.New(l, "order:{header.Order}", middleware.Rule{})(describe)), ask(describe); with != without {
			t.Errorf("%s: %s, without the middleware %s", name, with, without)
		}
	}
}

// A connection that a handler has hijacked is its own.
func TestHijack(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		force(t, l, r)
		<-r.Context().Done()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
		_ = conn.Close()
	}, middleware.Rule{OnClientAbort: "run"}))
	if got := post(t, server.URL, "Order", "42"); got.body != "mine" {
		t.Errorf("%d %q", got.StatusCode, got.body)
	}
	requireFree(t, l, "order:42")
}

// A handler after the lock doesn't find its token, and one after an inner lock finds that of the outer one.
func TestTokenEndsWithTheLock(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	inner := orders(l, ok, middleware.Rule{})
	outer := middleware.New(l, "other:{header.Order}", middleware.Rule{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		own := r.Header.Get("Fencing-Token")
		inner.ServeHTTP(w, r)
		if got := r.Header.Get("Fencing-Token"); got != own || own == "" {
			t.Errorf("%q behind the inner rule, %q before", got, own)
		}
	}))
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outer.ServeHTTP(w, r)
		if got := r.Header.Get("Fencing-Token"); got != "" {
			t.Errorf("%q behind both", got)
		}
	}))
	if got := post(t, server.URL, "Order", "42", "Fencing-Token", "1"); got.body != "served" {
		t.Errorf("%d %q", got.StatusCode, got.body)
	}
}
