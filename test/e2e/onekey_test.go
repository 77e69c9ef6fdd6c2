package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestCaddyRunsOneRequestPerKey(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d masters", n), func(t *testing.T) {
			servers := redistest.Start(t, n)
			b := newBackend(t, func() { time.Sleep(20 * time.Millisecond) })
			config := caddyfile(mastersOption(servers, "max_ttl 30s", "timeout 15s"), `
				redlock /orders/*/pay order:{path.1} {
					ttl 30s
				}
				redlock /orders/*/refund order:{path.1} {
					ttl 30s
					wait 5m
				}
				`+b.proxy())
			testOnePerKey(t, servers, b, runCaddy(t, config).url, runCaddy(t, config).url)
		})
	}
}

func TestNetHTTPRunsOneRequestPerKey(t *testing.T) {
	needTime(t)
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d masters", n), func(t *testing.T) {
			servers := redistest.Start(t, n)
			b := newBackend(t, func() { time.Sleep(20 * time.Millisecond) })
			testOnePerKey(t, servers, b, serveHTTP(t, servers, b), serveHTTP(t, servers, b))
		})
	}
}

// serveHTTP starts a server with a Locker of its own, as another process would, and returns its URL.
func serveHTTP(t *testing.T, servers []*redistest.Server, b *backend) string {
	t.Helper()
	locker, err := redlock.Open(redistest.URLs(servers), redlock.WithTimeout(calm), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locker.Close(); err != nil {
			t.Error(err)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id}", middleware.Rule{})(b))
	mux.Handle("POST /orders/{id}/refund", middleware.New(locker, "order:{path.id}", middleware.Rule{Wait: 5 * time.Minute})(b))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// testOnePerKey sends 200 requests for 10 keys through both processes, without and with a wait.
func testOnePerKey(t *testing.T, servers []*redistest.Server, b *backend, urls ...string) {
	const requests, keys = 200, 10
	burst := func(action string) []received {
		targets := make([]string, requests)
		for i := range targets {
			// each key through each process
			targets[i] = fmt.Sprintf("%s/orders/%d/%s", urls[i/keys%len(urls)], i%keys, action)
		}
		return postAll(t, targets...)()
	}
	t.Run("no wait", func(t *testing.T) {
		statuses := make(map[int]int)
		for _, a := range burst("pay") {
			requireRetryAfter(t, a)
			statuses[a.status]++
		}
		if statuses[http.StatusOK]+statuses[http.StatusLocked] != requests {
			t.Errorf("responses by status: %v, want 200 and 423 only", statuses)
		}
		requireNoOverlap(t, b)
		for key := range keys {
			if path := fmt.Sprintf("/orders/%d/pay", key); b.servedAt(path) == 0 {
				t.Errorf("no request of %s was served", path)
			}
		}
		redistest.RequireNoKeys(t, servers)
	})
	t.Run("wait", func(t *testing.T) {
		for _, a := range burst("refund") {
			if a.status != http.StatusOK {
				t.Errorf("status %d, want 200; body %q", a.status, a.body)
			}
		}
		requireNoOverlap(t, b)
		redistest.RequireNoKeys(t, servers)
	})
}

func requireNoOverlap(t *testing.T, b *backend) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.overlaps) > 0 {
		t.Errorf("requests that ran beside another with the same key: %v", b.overlaps)
	}
}
