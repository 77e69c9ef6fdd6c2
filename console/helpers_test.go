package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func newLocker(t *testing.T, servers []*redistest.Server, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	locker, err := redlock.Open(redistest.URLs(servers), append([]redlock.Option{
		redlock.WithRestartGuard(0), redlock.WithTimeout(calm), redlock.WithTTL(long), redlock.WithMaxTTL(long), redlock.WithInstance("web1/42"),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

// mount serves the console below a path, behind a ServeMux that cleans paths, as in most programs.
func mount(t *testing.T, lockers ...*redlock.Locker) (base string) {
	t.Helper()
	server := httptest.NewServer(muxOf(lockers))
	t.Cleanup(server.Close)
	return server.URL + "/ops/redlock/"
}

func muxOf(lockers []*redlock.Locker) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/ops/redlock/", http.StripPrefix("/ops/redlock", console.New(func() []*redlock.Locker { return lockers })))
	return mux
}

// mountInside is mount without connections, during which no virtual time would pass.
func mountInside(t *testing.T, lockers ...*redlock.Locker) (base string) {
	host := fmt.Sprintf("127.0.0.1:%d", within.last.Add(1))
	within.Store(host, muxOf(lockers))
	return "inside://" + host + "/ops/redlock/"
}

// within has the handlers of the URLs that begin with inside://, by their hosts.
var within handlers

type handlers struct {
	sync.Map
	last atomic.Int64
}

func init() { http.DefaultTransport.(*http.Transport).RegisterProtocol("inside", &within) }

func (h *handlers) RoundTrip(r *http.Request) (*http.Response, error) {
	handler, _ := h.Load(r.URL.Host)
	w := httptest.NewRecorder()
	handler.(http.Handler).ServeHTTP(w, r)
	return w.Result(), nil
}

func withRequest(r *inspect.Request) redlock.LockOption {
	return inside.WithRequest((*inside.Request)(r)).(redlock.LockOption)
}

func mustLock(t *testing.T, l *redlock.Locker, key string, opts ...redlock.LockOption) *redlock.Lock {
	t.Helper()
	lock, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Unlock() })
	return lock
}

// ask sends a request and decodes the response, whose status must be as wanted. What is common to all responses is checked, too.
func ask[T any](t *testing.T, method, url string, status int, header ...string) (value T) {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(r) // which follows no redirect
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != status {
		t.Fatalf("%s %s: status %d, want %d", method, url, response.StatusCode, status)
	}
	contentType := "application/json"
	if status >= 400 && !strings.HasSuffix(url, "?ready") {
		contentType = "application/problem+json"
	}
	h := response.Header
	if h.Get("Content-Type") != contentType || h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
		t.Errorf("%s %s: headers %v", method, url, h)
	}
	if method == http.MethodHead {
		return value
	}
	if err := json.NewDecoder(response.Body).Decode(&value); err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return value
}

var eventually = redistest.Eventually

// escape makes a segment of a path of a key. Clients and servers would remove "." and "..".
func escape(key string) string { return strings.ReplaceAll(url.PathEscape(key), ".", "%2E") }
