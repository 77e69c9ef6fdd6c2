package e2e

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/test/sdks"
)

// lossy is a load balancer between a client and a Caddy. It loses the first response to a payment that was made.
type lossy struct {
	*httptest.Server
	lose              func(w http.ResponseWriter, r *http.Request)
	lost              atomic.Bool
	requests, refused atomic.Int64 // refused are those with status 409
}

func newLossy(t *testing.T, to *caddyProcess, lose func(http.ResponseWriter, *http.Request)) *lossy {
	l := &lossy{lose: lose}
	target, err := url.Parse(to.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(response *http.Response) error {
		if response.StatusCode == http.StatusConflict {
			l.refused.Add(1)
		}
		if response.StatusCode != http.StatusOK || !l.lost.CompareAndSwap(false, true) {
			return nil
		}
		_, err := io.Copy(io.Discard, response.Body)
		return fmt.Errorf("the response is lost: %w", err)
	}
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, _ error) {
		if l.lose != nil { // otherwise the client has gone, and nothing is to be lost
			l.lose(w, r)
		}
	}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.requests.Add(1)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(l.Close)
	return l
}

// TestSDKOfStripeRepeats: stripe-node and stripe-python repeat a request whose response was lost in any way, by themselves and with its
// Idempotency-Key: they get the response to the payment, which is made once.
func TestSDKOfStripeRepeats(t *testing.T) {
	t.Parallel()
	t.Run("node", func(t *testing.T) {
		testRepeats(t, append(os.Environ(), "NODE_PATH="+sdks.Modules(t)), "node", "payments.js")
	})
	t.Run("python", func(t *testing.T) {
		sdks.RequirePython(t, "stripe")
		testRepeats(t, os.Environ(), sdks.Python, "payments.py")
	})
}

// testRepeats has a program with an SDK make payments whose first responses are lost.
func testRepeats(t *testing.T, environment []string, program ...string) {
	for name, test := range map[string]struct {
		lose   func(http.ResponseWriter, *http.Request)
		busy   bool // the first is still running when the client repeats it
		status int  // of the upstream's first response
		runs   int64
	}{
		"500 in place of the response": {lose: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, runs: 1},
		"502 in place of the response": {lose: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, runs: 1},
		"closed connection":            {lose: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, runs: 1},
		"time-out of the response":     {lose: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, runs: 1},
		"time-out while it runs":       {busy: true, runs: 1},
		"500 of the upstream itself":   {status: http.StatusInternalServerError, runs: 2}, // nobody knows what it has done: it is asked again
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			var front atomic.Pointer[lossy]
			ids := make(chan string, 100)
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				first := runs.Add(1) == 1
				id := "pi_" + rand.Text()
				ids <- id
				for test.busy && front.Load().refused.Load() == 0 && t.Context().Err() == nil {
					time.Sleep(5 * time.Millisecond)
				}
				if first && test.status > 0 {
					w.WriteHeader(test.status)
				}
				w.Header().Set(contentType, jsonType)
				_ = json.NewEncoder(w).Encode(map[string]string{"id": id, "object": "payment_intent"})
			}))
			t.Cleanup(upstream.Close)
			servers := redistest.Start(t, 3)
			c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), "redlock {\npreset idempotency-key\n}\nreverse_proxy "+upstream.Listener.Addr().String()))
			balancer := newLossy(t, c, test.lose)
			front.Store(balancer)
			if test.lose == nil {
				balancer.lost.Store(true)
			}
			host, port, _ := strings.Cut(balancer.Listener.Addr().String(), ":")
			cmd := exec.Command(program[0], program[1], host, port, "2000")
			cmd.Dir, cmd.Env = "../sdks", environment
			text, code := output(t, cmd)
			var payment struct {
				ID      string
				Headers map[string]string
			}
			if err := json.Unmarshal([]byte(text), &payment); err != nil || code != 0 {
				t.Fatalf("%s: %d %s", program, code, text)
			}
			var last string
			for len(ids) > 0 {
				last = <-ids
			}
			if payment.ID != last || runs.Load() != test.runs {
				t.Errorf("payment %s, made %d times: want %s, %d times", payment.ID, runs.Load(), last, test.runs)
			}
			if replayed := payment.Headers["idempotency-replayed"]; (replayed == "true") != (test.runs == 1) || balancer.requests.Load() < 2 {
				t.Errorf("Idempotency-Replayed %q after %d requests", replayed, balancer.requests.Load())
			}
		})
	}
}

// TestIdempotencyKeyInCaddy: what a plain client may send under the preset for APIs, and what it gets.
func TestIdempotencyKeyInCaddy(t *testing.T) {
	t.Parallel()
	i := newTill(t)
	servers := redistest.Start(t, 3)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), "redlock {\npreset idempotency-key\n}\n"+i.shop.proxy()))
	const alice, bob = "Bearer alice", "Bearer bob"
	pay := func(method, path, body string, header ...string) received {
		t.Helper()
		r := withBody(c.url+path, body, header...)
		r.Method = method
		return send(t, r)
	}
	first := pay("POST", "/pay?x=1", "{}", "Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice)
	other := pay("POST", "/pay?x=1", "{}", "Idempotency-Key", `"8e03978e-40d5"`, "Authorization", bob)
	if first.status != http.StatusOK || other.status != http.StatusOK || first.body == other.body || i.runs() != 2 {
		t.Fatalf("two clients with the same key: %d %d, %d runs, equal: %v", first.status, other.status, i.runs(), first.body == other.body)
	}
	for _, test := range []struct {
		method, path, body string
		header             []string
		status             int
		outcome            string // empty for a replay
	}{
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice}, 200, ""},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `8e03978e-40d5`, "Authorization", alice}, 200, ""},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5";v=1`, "Authorization", alice, "User-Agent", "other"}, 200, ""},
		{"PUT", "/pay?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice}, 422, "mismatch"},
		{"POST", "/pay?x=2", "{}", []string{"Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice}, 422, "mismatch"},
		{"POST", "/payout?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice}, 422, "mismatch"},
		{"POST", "/pay?x=1", `{"amount":2}`, []string{"Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice}, 422, "mismatch"},
		{"POST", "/pay?x=1", "{}", []string{"Authorization", alice}, 400, "missing_id"},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", "", "Authorization", alice}, 400, "missing_id"},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5`, "Authorization", alice}, 400, "bad_key"},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `a, b`, "Authorization", alice}, 400, "bad_key"},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", "a", "Idempotency-Key", "a", "Authorization", alice}, 400, "bad_key"},
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5"`}, 401, "missing_scope"}, // nobody knows who asks
		{"POST", "/pay?x=1", "{}", []string{"Idempotency-Key", `"8e03978e-40d5"`, "Authorization", alice, "Authorization", bob}, 400, "bad_key"},
	} {
		a := pay(test.method, test.path, test.body, test.header...)
		outcome := a.header.Get("Redlock-Outcome")
		replayed := a.header.Get("Idempotency-Replayed") == "true" && sameResponse(a, first)
		if a.status != test.status || outcome != test.outcome || replayed != (test.outcome == "") {
			t.Errorf("%s %s %s %q: %d %q, replayed %v: want %d %q", test.method, test.path, test.body, test.header, a.status, outcome, replayed, test.status, test.outcome)
		}
	}
	if i.runs() != 2 {
		t.Errorf("%d requests ran, want the two clients' first", i.runs())
	}
}

// TestCookiesAndLargeResponses: a repeat gets no cookie. Of a response that was too large it gets the status and a note.
func TestCookiesAndLargeResponses(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	rule := func(path, lines string) string {
		return "redlock " + path + " {\n" + idempotent + lines + "\n}\n"
	}
	c := runCaddy(t, caddyfile("", rule("/cookie", "remember 1h")+rule("/large", "remember 1h")+s.proxy()))
	ask := func(path string) received {
		return send(t, withBody(c.url+path, "{}", "Idempotency-Key", path, "Authorization", "Bearer alice"))
	}
	if first, again := ask("/cookie"), ask("/cookie"); first.header.Get("Set-Cookie") == "" || !sameResponse(first, again) || again.header["Set-Cookie"] != nil {
		t.Errorf("%q, and again %q", first.header["Set-Cookie"], again.header["Set-Cookie"])
	}
	before := s.runsOf("127.0.0.1")
	first, again := ask("/large"), ask("/large")
	if len(first.body) < 100_000 || again.status != first.status || again.header.Get(contentType) != "application/problem+json" || again.header.Get("Etag") != "" ||
		!strings.Contains(again.body, "problems.md#too_large") || again.header.Get("Idempotency-Replayed") != "true" || s.runsOf("127.0.0.1") != before+1 {
		t.Errorf("%d bytes, and again %d %v %q, %d runs", len(first.body), again.status, again.header, again.body, s.runsOf("127.0.0.1")-before)
	}
}
