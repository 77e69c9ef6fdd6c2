package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// Handlers of errors run without the lock and its fencing token, unless they have a rule of their own.
func TestHandlersOfErrors(t *testing.T) {
	t.Parallel()
	for _, locked := range []bool{false, true} {
		var inside, most, tokens atomic.Int32
		fallback := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n := inside.Add(1)
			defer inside.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if r.Header.Get("Fencing-Token") != "" {
				tokens.Add(1)
			}
			for deadline := time.Now().Add(100 * time.Millisecond); inside.Load() < 2 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			}
		}))
		t.Cleanup(fallback.Close)
		rule := "redlock {path.1} {\nwait 1m\n}\n"
		inErrors := "rewrite * /error?\n"
		if locked {
			inErrors = rule
		}
		c := runCaddy(t, caddyfile("", rule+"reverse_proxy "+freeAddr(t)+"\nhandle_errors 502 {\n"+inErrors+"reverse_proxy "+fallback.Listener.Addr().String()+"\n}"))
		const requests = 6
		var urls []string
		for range requests {
			urls = append(urls, c.url+"/orders/1")
		}
		for _, a := range postAll(t, urls...)() {
			if a.status >= http.StatusInternalServerError && a.status != http.StatusBadGateway {
				t.Errorf("status %d", a.status)
			}
		}
		t.Logf("a rule in handle_errors: %v; most at once %d, with a token %d of %d", locked, most.Load(), tokens.Load(), requests)
		switch {
		case locked && (most.Load() != 1 || tokens.Load() != requests):
			t.Errorf("%d at once, %d of %d with a token: want one at a time, all with one", most.Load(), tokens.Load(), requests)
		case !locked && tokens.Load() != 0:
			t.Errorf("%d have the fencing token of a lock that was released", tokens.Load())
		}
	}
}

// A client that sends one request after the other never meets its own lock, whatever handler answers, and however long the response is.
func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscanf(r.URL.Query().Get("n"), "%d", &n)
		if r.URL.Query().Get("chunked") == "" {
			w.Header().Set("Content-Length", fmt.Sprint(n))
		}
		_, _ = w.Write(make([]byte, n))
	}))
	t.Cleanup(upstream.Close)
	h := newHosts(t)
	servers := redistest.Start(t, 3)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		redlock {path.0}
		handle /f.txt {
			root * `+h.dir+`
			file_server
		}
		reverse_proxy `+upstream.Listener.Addr().String()))
	single := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/o?n=100", "/o?n=5000", "/o?n=20000", "/o?n=200000", "/o?n=20000&chunked=1", "/f.txt"} {
		refused := 0
		for range 40 {
			response, err := single.Get(c.url + path)
			if err != nil {
				t.Fatal(err)
			}
			if read(t, response).status != http.StatusOK {
				refused++
			}
		}
		if refused > 0 {
			t.Errorf("%s: %d of 40 were refused", path, refused)
		}
	}
}
