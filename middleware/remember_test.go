package middleware_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// cashier answers each request anew, so that a replay can be told from another run.
type cashier struct {
	runs   atomic.Int64
	answer http.HandlerFunc
}

func (c *cashier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.runs.Add(1)
	_, _ = io.Copy(io.Discard, r.Body)
	c.answer(w, r)
}

// receipt is a response with a random body.
func receipt(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", "/receipts/1")
	w.Header().Add("Link", "<a>")
	w.Header().Add("Link", "<b>")
	w.Header().Set("Set-Cookie", "session=secret")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, rand.Text())
}

const hour = time.Hour

// remembering is a rule that remembers the responses of a cashier.
func remembering(t *testing.T, answer http.HandlerFunc, rule middleware.Rule) (*httptest.Server, *cashier) {
	t.Helper()
	c := &cashier{answer: answer}
	rule.Dedupe, rule.Remember, rule.Wait = cmp.Or(rule.Dedupe, "{header.Id}"), cmp.Or(rule.Remember, hour), cmp.Or(rule.Wait, bound)
	return serve(t, orders(newLocker(t, live), c.ServeHTTP, rule)), c
}

func (c *cashier) requireRuns(t *testing.T, want int64) {
	t.Helper()
	if got := c.runs.Load(); got != want {
		t.Errorf("%d runs, want %d", got, want)
	}
}

func requireReplay(t *testing.T, got, first received) {
	t.Helper()
	if got.StatusCode != first.StatusCode || got.body != first.body || got.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %q %v, want the first response, %d %q", got.StatusCode, got.body, got.Header, first.StatusCode, first.body)
	}
}

// A repeat gets the first response, and only a repeat does.
func TestRemember(t *testing.T) {
	t.Parallel()
	server, c := remembering(t, receipt, middleware.Rule{})
	first := post(t, server.URL, "Order", "42", "Id", "a")
	if first.StatusCode != http.StatusCreated || first.Header.Get("Set-Cookie") == "" || first.Header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("%d %v", first.StatusCode, first.Header)
	}
	for range 3 {
		again := post(t, server.URL, "Order", "42", "Id", "a")
		requireReplay(t, again, first)
		if again.Header.Get("Location") != "/receipts/1" || len(again.Header["Link"]) != 2 || again.Header.Get("Set-Cookie") != "" || again.ContentLength != int64(len(first.body)) {
			t.Errorf("headers %v", again.Header)
		}
	}
	c.requireRuns(t, 1)
	for i, other := range [][]string{{"Order", "43", "Id", "a"}, {"Order", "42", "Id", "b"}, {"Order", "42", "Id", "A"}, {"Order", "42"}, {"Order", "42"}} {
		if got := post(t, server.URL, other...); got.body == first.body || got.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%v: %q", other, got.body)
		}
		c.requireRuns(t, int64(i+2))
	}
}

// A repeat of what is done doesn't wait for those that hold its key now.
func TestReplayWhileTheKeyIsHeld(t *testing.T) {
	t.Parallel()
	running, end := make(chan bool), make(chan bool)
	server, _ := remembering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Id") == "slow" {
			running <- true
			<-end
		}
		receipt(w, r)
	}, middleware.Rule{})
	first := post(t, server.URL, "Order", "42", "Id", "a")
	slow := make(chan received)
	go func() { slow <- post(t, server.URL, "Order", "42", "Id", "slow") }()
	receive(t, running, "the slow one")
	requireReplay(t, post(t, server.URL, "Order", "42", "Id", "a"), first)
	requireProblem(t, post(t, server.URL, "Order", "42", "Id", "slow"), http.StatusConflict, "duplicate")
	close(end)
	first = receive(t, slow, "the response to the slow one")
	requireReplay(t, post(t, server.URL, "Order", "42", "Id", "slow"), first)
}

// What isn't the last word runs again.
func TestNotRemembered(t *testing.T) {
	t.Parallel()
	status := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		rule   middleware.Rule
	}{
		"500": {status(500), middleware.Rule{}}, "502": {status(502), middleware.Rule{}}, "503": {status(503), middleware.Rule{}}, "401": {status(401), middleware.Rule{}}, "403": {status(403), middleware.Rule{}}, "408": {status(408), middleware.Rule{}},
		"409": {status(409), middleware.Rule{}}, "423": {status(423), middleware.Rule{}}, "425": {status(425), middleware.Rule{}}, "429": {status(429), middleware.Rule{}},
		"204 which is not chosen": {status(204), middleware.Rule{RememberStatus: []string{"201", "4xx"}}},
		"broken off":              {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, middleware.Rule{}},
		"broken off after a part": {func(w http.ResponseWriter, r *http.Request) { receipt(w, r); panic(http.ErrAbortHandler) }, middleware.Rule{}},
		"a stream of events": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = io.WriteString(w, "data: 1\n\n")
		}, middleware.Rule{}},
		"shorter than declared": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "short")
		}, middleware.Rule{}},
	} {
		t.Run(name, func(t *testing.T) {
			server, c := remembering(t, test.answer, test.rule)
			for n := range int64(2) {
				resp, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42", "Id", "a"))
				if err == nil {
					_ = resp.Body.Close()
				}
				c.requireRuns(t, n+1)
			}
		})
	}
}

func TestRememberedStatuses(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 201, 202, 204, 302, 304, 400, 404, 410, 422} {
		server, c := remembering(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }, middleware.Rule{})
		first := post(t, server.URL, "Order", "42", "Id", "a")
		requireReplay(t, post(t, server.URL, "Order", "42", "Id", "a"), first)
		c.requireRuns(t, 1)
	}
	for _, statuses := range [][]string{{}, {"5xx"}, {"500"}, {"199"}, {"1xx"}, {"2XX"}, {"x"}, {""}, {"2xx", "-200"}} {
		if err := wrong(middleware.Rule{Dedupe: "{header.Id}", Remember: hour, RememberStatus: statuses}); err == nil {
			t.Errorf("%q: no error", statuses)
		}
	}
}

// The repeat of a request whose response was too large is not served again; it learns the status.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 101)
	server, c := remembering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/receipts/1")
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, large[len(r.Header.Get("Shorter")):])
	}, middleware.Rule{RememberSize: 100})
	if got := post(t, server.URL, "Order", "42", "Id", "a"); got.body != large {
		t.Errorf("%q", got.body)
	}
	got := post(t, server.URL, "Order", "42", "Id", "a")
	if got.StatusCode != http.StatusCreated || got.Header.Get("Location") != "/receipts/1" || got.Header.Get("Idempotency-Replayed") != "true" ||
		got.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.body, "too_large") {
		t.Errorf("%d %v %s", got.StatusCode, got.Header, got.body)
	}
	c.requireRuns(t, 1)
	first := post(t, server.URL, "Order", "42", "Id", "b", "Shorter", "1")
	requireReplay(t, post(t, server.URL, "Order", "42", "Id", "b", "Shorter", "1"), first)
}

// An ID names one request: another one with it is refused, or answered with the first response if the rule says so.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	request := func(method, url, body string) *http.Request {
		req := newRequest(t, url, "Order", "42", "Id", "a")
		req.Method, req.Body = method, io.NopCloser(strings.NewReader(body))
		return req
	}
	server, c := remembering(t, receipt, middleware.Rule{Site: "shop"})
	loose, _ := remembering(t, receipt, middleware.Rule{Fingerprint: new(false)})
	first, firstLoose := do(t, request("POST", server.URL+"/pay?x=1", "10")), do(t, request("POST", loose.URL+"/pay?x=1", "10"))
	for _, other := range []struct{ method, path, body string }{{"PUT", "/pay?x=1", "10"}, {"POST", "/pay2?x=1", "10"}, {"POST", "/pay?x=2", "10"}, {"POST", "/pay?x=1", "11"}, {"POST", "/pay?x=1", ""}} {
		requireProblem(t, do(t, request(other.method, server.URL+other.path, other.body)), http.StatusUnprocessableEntity, "mismatch")
		if got := do(t, request(other.method, loose.URL+other.path, other.body)); other.method == "POST" && other.path == "/pay?x=1" {
			requireReplay(t, got, firstLoose)
		} else if got.StatusCode != http.StatusCreated || got.body == firstLoose.body { // one event, delivered to two places
			t.Errorf("%s %s: %d %q", other.method, other.path, got.StatusCode, got.body)
		}
	}
	requireReplay(t, do(t, request("POST", server.URL+"/pay?x=1", "10")), first)
	elsewhere := request("POST", server.URL+"/pay?x=1", "10")
	elsewhere.Host = "other.example.com" // the client has tried another of our hosts
	requireReplay(t, do(t, elsewhere), first)
	c.requireRuns(t, 1)
	if got := do(t, request("POST", server.URL+"/pay?x=1", string(make([]byte, 2<<20)))); got.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body above max_body: %d", got.StatusCode)
	}
}

// What a sender of webhooks takes for a failure, and sends again, runs again.
func TestWebhooksThatFailed(t *testing.T) {
	t.Parallel()
	c := &cashier{}
	c.answer = func(w http.ResponseWriter, r *http.Request) {
		if c.runs.Load() == 1 {
			http.NotFound(w, r)
			return
		}
		receipt(w, r)
	}
	server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: "standard-webhooks", Remember: hour})(c))
	if got := post(t, server.URL, "Webhook-Id", "a"); got.StatusCode != http.StatusNotFound {
		t.Fatal(got.StatusCode)
	}
	second := post(t, server.URL, "Webhook-Id", "a")
	requireReplay(t, post(t, server.URL, "Webhook-Id", "a"), second)
	c.requireRuns(t, 2)
}

// Two places are apart, even if the handlers before have made the same path of them.
func TestPlacesWithTheSamePath(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	h := orders(newLocker(t, live), c.ServeHTTP, middleware.Rule{Dedupe: "{header.Id}", Remember: hour, Fingerprint: new(false)})
	mux := http.NewServeMux()
	mux.Handle("/billing/", http.StripPrefix("/billing", h))
	mux.Handle("/shipping/", http.StripPrefix("/shipping", h))
	server := serve(t, mux)
	billing := post(t, server.URL+"/billing/event", "Order", "42", "Id", "a")
	post(t, server.URL+"/shipping/event", "Order", "42", "Id", "a")
	c.requireRuns(t, 2)
	requireReplay(t, post(t, server.URL+"/billing//event", "Order", "42", "Id", "a"), billing)
	c.requireRuns(t, 2)
}

// Whoever copies a delivery chooses among the spellings of its place.
func TestSpellingsOfAPlace(t *testing.T) {
	t.Parallel()
	server, c := remembering(t, receipt, middleware.Rule{Fingerprint: new(false)})
	send := func(host, path string) received {
		r := newRequest(t, server.URL+path, "Order", "42", "Id", "a")
		r.Host = host
		return do(t, r)
	}
	first := send("hooks.example.com", "/hooks/github")
	for _, same := range [][2]string{
		{"Hooks.Example.com", "/hooks/github"}, {"hooks.example.com.", "/hooks/github"}, {"hooks.example.com:443", "/hooks/github"},
		{"hooks.example.com", "/hooks/git%68ub"}, {"hooks.example.com", "/hooks/GitHub/"}, {"hooks.example.com", "/hooks;x/github;y=1"},
		{"hooks.example.com", "//hooks/./github"}, {"hooks.example.com", "/hooks/x/../github"}, {"hooks.example.com", "/x/..;y/hooks/github/z/%2e%2e"},
		{"hooks.example.com", "/hooks/x%2F..%2Fgithub"}, {"hooks.example.com", "/hooks%5Cgithub"},
	} {
		requireReplay(t, send(same[0], same[1]), first)
	}
	c.requireRuns(t, 1)
	for _, other := range [][2]string{{"hooks.example.org", "/hooks/github"}, {"hooks.example.com", "/hooks/github/2"}, {"hooks.example.com", "/"}, {"hooks.example.com", "/hooks/github?tenant=b"}} {
		send(other[0], other[1])
	}
	c.requireRuns(t, 5)
}

// Nobody gets the response to what another has asked.
func TestScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := newLocker(t, live), &cashier{answer: receipt}
		h := orders(l, c.ServeHTTP, middleware.Rule{Dedupe: "{header.Id}", Remember: hour, Scope: "{header.Authorization}"})
		ann := serveInside(h, "Order", "42", "Id", "a", "Authorization", "Bearer Ann")
		bob := serveInside(h, "Order", "42", "Id", "a", "Authorization", "Bearer ann")
		if bob.body == ann.body {
			t.Error("one client got the response of another")
		}
		requireReplay(t, serveInside(h, "Order", "42", "Id", "a", "Authorization", "Bearer Ann"), ann)
		if forgotten, err := inspect.Forget(t.Context(), l, middleware.Delivery{Keys: []string{"order:42"}, ID: "a", Host: "example.com", Scope: "Bearer Ann"}.Key()); err != nil {
			t.Errorf("an operator names the scope as the client sends it: %v, %v", forgotten, err)
		}
		requireProblem(t, serveInside(h, "Order", "42", "Id", "a"), http.StatusUnauthorized, "missing_scope")
		c.requireRuns(t, 2)
	})
}

// A client that leaves gets the response when it comes again: its request runs to the end without a setting.
func TestRememberedForAClientThatLeft(t *testing.T) {
	t.Parallel()
	running, end := make(chan bool, 1), make(chan bool)
	server, c := remembering(t, func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-end
		receipt(w, r)
	}, middleware.Rule{})
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42", "Id", "a").WithContext(ctx))
		gone <- err
	}()
	receive(t, running, "the first")
	leave()
	receive(t, gone, "the client's error")
	close(end)
	var got received
	for start := time.Now(); time.Since(start) < bound; time.Sleep(time.Millisecond) {
		if got = post(t, server.URL, "Order", "42", "Id", "a"); got.StatusCode != http.StatusConflict {
			break
		}
	}
	if got.Header.Get("Idempotency-Replayed") != "true" || got.body == "" {
		t.Errorf("%d %q", got.StatusCode, got.body)
	}
	c.requireRuns(t, 1)
}

// A rule inside of one that holds its keys compares deliveries, too, and remembers their responses.
func TestRememberInsideOfTheKeys(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		if fence, ok := turn.Fence(); !ok || r.Header.Get("Fencing-Token") != fmt.Sprint(fence) || r.Header.Get("Outer") != fmt.Sprint(fence) {
			t.Errorf("fence %d, %v: want that of the rule around", fence, r.Header)
		}
		receipt(w, r)
	}}
	inner := orders(l, c.ServeHTTP, middleware.Rule{Dedupe: "{header.Id}", Remember: hour})
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Outer", r.Header.Get("Fencing-Token"))
		inner.ServeHTTP(w, r)
		if turn, _ := middleware.TurnFromContext(r.Context()); turn.Lock.Err() != nil {
			t.Error("the inner rule released the lock of the outer one")
		}
	}, middleware.Rule{}))
	first := post(t, server.URL, "Order", "42", "Id", "a")
	requireReplay(t, post(t, server.URL, "Order", "42", "Id", "a"), first)
	c.requireRuns(t, 1)
	requireFree(t, l, "order:42")
}

// Responses on the masters are encrypted; keys can be replaced; a response that can't be read is not made again.
func TestSealer(t *testing.T) {
	t.Parallel()
	sealer := func(keys ...byte) *middleware.Sealer {
		var all [][]byte
		for _, key := range keys {
			all = append(all, bytes.Repeat([]byte{key}, 32))
		}
		s, err := middleware.NewSealer(all...)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	c := &cashier{answer: receipt}
	l := newLocker(t, live)
	with := func(rule middleware.Rule) *httptest.Server {
		rule.Dedupe, rule.Remember = "{header.Id}", hour
		return serve(t, orders(l, c.ServeHTTP, rule))
	}
	pay := func(server *httptest.Server, id string) received {
		req := newRequest(t, server.URL, "Order", "42", "Id", id)
		req.Host = "shop.example.com"
		return do(t, req)
	}
	plain := pay(with(middleware.Rule{}), "plain")
	requireReplay(t, pay(with(middleware.Rule{Sealer: sealer(1)}), "plain"), plain) // from before there was a key
	c.runs.Store(0)
	first := pay(with(middleware.Rule{Sealer: sealer(1)}), "a")
	requireReplay(t, pay(with(middleware.Rule{Sealer: sealer(1)}), "a"), first)
	requireReplay(t, pay(with(middleware.Rule{Sealer: sealer(2, 1)}), "a"), first)
	requireProblem(t, pay(with(middleware.Rule{Sealer: sealer(2)}), "a"), http.StatusInternalServerError, "failed")
	requireProblem(t, pay(with(middleware.Rule{}), "a"), http.StatusInternalServerError, "failed")
	c.requireRuns(t, 1)
	if _, err := middleware.NewSealer([]byte("short")); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("a short key: %v", err)
	}
}

// The Observer is told of each response that was to be remembered, and the outcome of a replay.
func TestObserverOfResponses(t *testing.T) {
	t.Parallel()
	n := &notes{}
	server, _ := remembering(t, receipt, middleware.Rule{Observer: n, Name: "pay"})
	post(t, server.URL, "Order", "42", "Id", "a")
	post(t, server.URL, "Order", "42", "Id", "a")
	n.require(t, 1, 1, done{"pay", middleware.OutcomeAcquired, true}, done{"pay", middleware.OutcomeReplayed, false})
	if n.remembered != 1 || n.bytes < 32 {
		t.Errorf("%d responses remembered with %d bytes", n.remembered, n.bytes)
	}
}

func TestWrongMemory(t *testing.T) {
	t.Parallel()
	id := "{header.Id}"
	for want, rule := range map[string]middleware.Rule{
		"remember needs dedupe or idempotency_key": {Remember: hour},
		"scope needs dedupe or idempotency_key":    {Scope: "{header.Authorization}"},
		"remember 1ms: must be at least 1s":        {Dedupe: id, Remember: time.Millisecond},
		"size 983041: must be from 1 to 983040":    {Dedupe: id, Remember: hour, RememberSize: 983041},
		"on_client_abort cancel: remember needs":   {Dedupe: id, Remember: hour, OnClientAbort: middleware.Cancel},
		"size -1":                                  {Dedupe: id, Remember: hour, RememberSize: -1},
	} {
		err := middleware.Check("{header.Order}", rule)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		func() {
			defer func() {
				if got := recover(); got != fmt.Sprintf("middleware: %v", err) {
					t.Errorf("New panics with %v, and not with %v", got, err)
				}
			}()
			middleware.New(newLocker(t, live), "{header.Order}", rule)
		}()
	}
	if err := middleware.Check("{header.Order}", middleware.Rule{Dedupe: id, Remember: hour}); err != nil {
		t.Error(err)
	}
}

// TestUnreadableResponse: a request whose response is remembered and can't be read doesn't run again, even where requests run without a
// quorum.
func TestUnreadableResponse(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	body := make([]byte, 8<<10)
	_, _ = rand.Read(body)
	c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Id") == "a" {
			_, _ = w.Write(body)
		}
	}}
	process := func() *httptest.Server {
		return serve(t, orders(newLocker(t, redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(longTTL/2)), c.ServeHTTP,
			middleware.Rule{Dedupe: "{header.Id}", Remember: hour, OnNoQuorum: middleware.Pass}))
	}
	first := post(t, process().URL, "Order", "42", "Id", "a")
	server := process()
	post(t, server.URL, "Order", "43", "Id", "b") // short responses need one connection, and only long ones a second
	clients := func(most string) {
		t.Helper()
		for _, s := range servers {
			if err := s.Client().ConfigSet(t.Context(), "maxclients", most).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	clients("1") // no other connection can be made
	got := post(t, server.URL, "Order", "42", "Id", "a")
	if got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Redlock-Outcome") != "unreadable" || got.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", got.StatusCode, got.Header)
	}
	c.requireRuns(t, 2)
	clients("1000")
	eventually(t, "the response can be read", func() bool {
		got = post(t, server.URL, "Order", "42", "Id", "a")
		return got.StatusCode != http.StatusServiceUnavailable
	})
	requireReplay(t, got, first)
	c.requireRuns(t, 2)
}
