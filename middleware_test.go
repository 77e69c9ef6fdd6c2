// The end-to-end tests: real Caddy processes, real redis-servers, real HTTP.
package caddyredlock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// calm keeps a busy machine from being taken for a failed master.
const calm = 2 * time.Second

func TestCaddyRunsOneRequestPerKey(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d masters", n), func(t *testing.T) {
			servers := redistest.Start(t, n)
			b := newBackend(t, func() { time.Sleep(20 * time.Millisecond) })
			config := caddyfile(mastersOption(servers, "timeout "+calm.String()), `
				redlock /orders/*/pay order:{path.1}
				redlock /orders/*/refund order:{path.1} {
					wait 30s
				}
				`+b.proxy())
			testOnePerKey(t, servers, b, runCaddy(t, config).url, runCaddy(t, config).url)
		})
	}
}

func TestNetHTTPRunsOneRequestPerKey(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d masters", n), func(t *testing.T) {
			servers := redistest.Start(t, n)
			b := newBackend(t, func() { time.Sleep(20 * time.Millisecond) })
			testOnePerKey(t, servers, b, serveHTTP(t, servers, b), serveHTTP(t, servers, b))
		})
	}
}

// serveHTTP is what another process would be: a Locker and a server of its own. It gives the URL.
func serveHTTP(t *testing.T, servers []*redistest.Server, b *backend) string {
	t.Helper()
	masters, err := redlock.Dial(redistest.URLs(servers)...)
	if err != nil {
		t.Fatal(err)
	}
	locker, err := redlock.New(masters, redlock.WithTimeout(calm), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locker.Close(); err != nil {
			t.Error(err)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id}")(b))
	mux.Handle("POST /orders/{id}/refund", middleware.New(locker, "order:{path.id}", middleware.WithWait(30*time.Second))(b))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// testOnePerKey sends 200 requests over 10 keys through both processes, without and with a wait.
func testOnePerKey(t *testing.T, servers []*redistest.Server, b *backend, urls ...string) {
	const requests, keys = 200, 10
	burst := func(action string) []answer {
		targets := make([]string, requests)
		for i := range targets {
			// each key comes through each process
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
			t.Errorf("answers by status: %v, want 200 and 423 only", statuses)
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

// The library and the middleware are for programs without Caddy.
func TestImports(t *testing.T) {
	for _, path := range dependencies(t, "./middleware", "./redlock") {
		if strings.HasPrefix(path, "github.com/caddyserver/") {
			t.Errorf("middleware or redlock needs %s", path)
		}
	}
	known := make(map[string]bool)
	for _, path := range dependencies(t, "github.com/redis/go-redis/v9") {
		known[path] = true
	}
	for _, path := range dependencies(t, "./redlock") {
		if !known[path] && !strings.HasPrefix(path, "github.com/redis/go-redis/v9/") && !strings.HasSuffix(path, "/caddy-redlock/redlock") {
			t.Errorf("redlock needs %s, beside go-redis and the standard library", path)
		}
	}
}

// dependencies are all packages that these import, without those of the standard library.
func dependencies(t *testing.T, packages ...string) []string {
	t.Helper()
	args := append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, packages...)
	text, code := output(t, exec.Command("go", args...))
	if code != 0 || text == "" {
		t.Fatalf("go list: exit code %d: %s", code, text)
	}
	return strings.Fields(text)
}
