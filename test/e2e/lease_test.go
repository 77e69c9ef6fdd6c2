package e2e

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// The upstream gets growing fencing tokens of ours, and never one that the client has made up.
func TestFencingToken(t *testing.T) {
	t.Parallel()
	upstream := make(chan http.Header, 1)
	b := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { upstream <- r.Header }))
	t.Cleanup(b.Close)
	servers := redistest.Start(t, 3)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		header >X-Fence {http.redlock.fence}
		redlock /orders/* order:{path.1}
		redlock /named/* order:{path.1} {
			fence_header X-Fence-Token
		}
		redlock /open/* order:{header.X-Order} {
			on_missing_key pass
		}
		reverse_proxy `+b.Listener.Addr().String()))

	var last uint64
	for range 3 {
		a := post(t, c.url+"/orders/42", "Fencing-Token", "18446744073709551615", "fencing_token", "1", "FENCING-TOKEN", "2")
		requireStatus(t, a, http.StatusOK)
		h := <-upstream
		fence, err := strconv.ParseUint(h.Get("Fencing-Token"), 10, 53)
		if err != nil || fence <= last || a.header.Get("X-Fence") != h.Get("Fencing-Token") {
			t.Errorf("fence %q after %d, placeholder %q: %v", h["Fencing-Token"], last, a.header.Get("X-Fence"), err)
		}
		if len(h.Values("Fencing-Token")) != 1 || len(h["Fencing_token"]) != 0 {
			t.Errorf("the client's own token came through: %v", h)
		}
		last = fence
	}

	requireStatus(t, post(t, c.url+"/named/42", "x-fence_token", "1"), http.StatusOK)
	if h := <-upstream; h.Get("X-Fence-Token") <= "1" || h.Get("Fencing-Token") != "" || h.Get("X-Fence_token") != "" {
		t.Errorf("fence in a header of another name: %v", h)
	}
	requireStatus(t, post(t, c.url+"/open/42", "Fencing-Token", "1", "Fencing_Token", "2"), http.StatusOK)
	if h := <-upstream; h.Get("Fencing-Token") != "" || h.Get("Fencing_Token") != "" {
		t.Errorf("a request without a lock has a token: %v", h)
	}
}

// A request keeps its lock for longer than the ttl, and loses it at max_hold.
func TestLongRequests(t *testing.T) {
	needTime(t)
	t.Parallel()
	const ttl = 6 * time.Second
	b, release := newHeldBackend(t)
	servers := redistest.Start(t, 3)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		redlock /long/* order:{path.1} {
			ttl `+ttl.String()+`
		}
		redlock /stuck/* stuck:{path.1} {
			ttl `+ttl.String()+`
			max_hold 3s
		}
		`+b.proxy()))
	start := time.Now()
	long := b.hold(t, c.url+"/long/42")
	for time.Since(start) < 2*ttl {
		requireStatus(t, post(t, c.url+"/long/42"), http.StatusLocked)
		time.Sleep(ttl / 40)
	}
	stuck := b.hold(t, c.url+"/stuck/42")
	requireStatus(t, stuck()[0], http.StatusInternalServerError)
	requireLogLine(t, c, `"logger":"redlock"`, "lease lost", "max hold")
	release()
	requireStatus(t, long()[0], http.StatusOK)
	requireStatus(t, post(t, c.url+"/stuck/42"), http.StatusOK)
	redistest.RequireNoKeys(t, servers)
}

// If all masters hang, a request ends with its lease: the upstream's request is canceled, and the client gets a response that says that
// the outcome is unknown.
func TestLostLease(t *testing.T) {
	needTime(t)
	t.Parallel()
	canceled := make(chan struct{})
	b := newBackend(t, func() {})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.ServeHTTP(w, r)
		<-r.Context().Done()
		close(canceled)
	}))
	t.Cleanup(upstream.Close)
	servers := redistest.Start(t, 3)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		redlock order:{path.1} {
			ttl 6s
			wait 1m
		}
		reverse_proxy `+upstream.Listener.Addr().String()+`
		handle_errors 500 {
			respond "{http.redlock.outcome}: {err.message}" 500
		}`))
	wait := postAll(t, c.url+"/orders/42")
	eventually(t, "the request is in the upstream", func() bool { return b.servedTotal() == 1 })
	for _, s := range servers {
		s.Pause()
	}
	a := wait()[0]
	if a.status != http.StatusInternalServerError || !strings.HasPrefix(a.body, "lost: the lease could not be renewed") {
		t.Errorf("status %d, body %q, want 500 and the outcome lost", a.status, a.body)
	}
	for _, s := range servers {
		if strings.Contains(a.body, s.Addr()) {
			t.Errorf("{err.message} names the master %s: %q", s.Addr(), a.body)
		}
	}
	select {
	case <-canceled:
	case <-time.After(bound):
		t.Error("the upstream's request goes on")
	}
	for _, s := range servers {
		s.Resume()
	}
	redistest.RequireNoKeys(t, servers)
}

// Servers that have just started have no vote for max_ttl and a second; Retry-After says when they will.
func TestRestartGuard(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	for _, s := range servers { // the start of Caddy may take as long as the guard
		s.Kill()
	}
	masters := "redlock {\nmasters " + redistest.URLs(servers)[0] + " " + redistest.URLs(servers)[1] + " " + redistest.URLs(servers)[2] + "\nmax_ttl 10s\n}"
	c := runCaddy(t, caddyfile(masters, payRule+"respond served"))
	for _, s := range servers {
		s.Restart()
	}
	eventually(t, "the guard's end is told: 11 s, and at most a half more", func() bool {
		refused := post(t, c.url+"/orders/42/pay")
		requireStatus(t, refused, http.StatusConflict)
		after, err := strconv.Atoi(refused.header.Get("Retry-After"))
		if err != nil || after > 17 {
			t.Errorf("Retry-After %q", refused.header.Get("Retry-After"))
		}
		return after >= 2
	})
	requireLogLine(t, c, "master unavailable", "has just started")
	eventually(t, "the guard is over", func() bool { return post(t, c.url+"/orders/42/pay").status == http.StatusOK })
}
