package caddyredlock_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestOneRequestPerKey is the whole story: Caddy, three Redis servers, and several requests for one order. The other
// end-to-end tests are in the folder e2e.
func TestOneRequestPerKey(t *testing.T) {
	began, finish := make(chan bool), make(chan bool)
	var running atomic.Int32
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Fence", r.Header.Get("Fencing-Token"))
		if strings.HasPrefix(r.URL.Path, "/orders/42/") {
			defer running.Add(-1)
			if running.Add(1) > 1 {
				t.Error("two requests for one order at once")
				return
			}
			began <- true
			<-finish
		}
	}))
	defer backend.Close()
	masters := redistest.Start(t, 3)
	url := runCaddy(t, masters, `
		redlock /orders/*/pay order:{path.1}
		redlock /orders/*/refund order:{path.1} {
			wait 1m
		}
		reverse_proxy `+backend.Listener.Addr().String())

	paid := post(t, url+"/orders/42/pay")
	select {
	case <-began:
	case a := <-paid:
		t.Fatalf("payment: status %d, and it has not reached the backend", a.StatusCode)
	}
	if a := <-post(t, url+"/orders/42/pay"); a.StatusCode != http.StatusLocked || a.Header.Get("Retry-After") == "" || a.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("second payment of an order: status %d, header %v; want 423, when to retry, and why", a.StatusCode, a.Header)
	}
	if a := <-post(t, url+"/orders/43/pay"); a.StatusCode != http.StatusOK {
		t.Errorf("payment of another order meanwhile: status %d, want 200", a.StatusCode)
	}
	refunded := post(t, url+"/orders/42/refund") // waits for the payment
	finish <- true
	first := <-paid
	select {
	case <-began:
	case a := <-refunded:
		t.Fatalf("refund: status %d, and it has not reached the backend", a.StatusCode)
	}
	finish <- true
	second := <-refunded
	if first.StatusCode != http.StatusOK || second.StatusCode != http.StatusOK || fence(first) == 0 || fence(first) >= fence(second) {
		t.Errorf("payment: status %d and fencing token %d; refund: status %d and fencing token %d; want 200, and a growing token",
			first.StatusCode, fence(first), second.StatusCode, fence(second))
	}
	redistest.RequireNoKeys(t, masters) // all locks were released
}

// runCaddy runs Caddy in this process until the end of the test, and returns the URL of its only site.
func runCaddy(t *testing.T, masters []*redistest.Server, site string) string {
	t.Helper()
	url := fmt.Sprintf("http://127.0.0.1:%d", redistest.FreePort(t))
	config := `{
		admin off
		default_bind 127.0.0.1
		persist_config off
		storage_clean_interval off
		redlock {
			masters ` + strings.Join(redistest.URLs(masters), " ") + `
			timeout 2s        # the machine may be busy
			restart_guard off # the masters have just started
		}
	}
	` + url + " {\n" + site + "\n}\n"
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(text, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	return url
}

// post sends a request, and passes its response on when that has come.
func post(t *testing.T, url string) <-chan *http.Response {
	responses := make(chan *http.Response, 1)
	go func() {
		a, err := http.Post(url, "text/plain", nil)
		if err != nil {
			t.Error(err)
			a = &http.Response{Body: http.NoBody}
		}
		_ = a.Body.Close()
		responses <- a
	}()
	return responses
}

// fence returns the fencing token that the backend got with a request.
func fence(a *http.Response) uint64 {
	n, _ := strconv.ParseUint(a.Header.Get("Fence"), 10, 64)
	return n
}
