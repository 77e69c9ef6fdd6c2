package plugintest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// testAway sends requests while there is no agent, and when it is there again.
func testAway(t *testing.T, p *Plugin) {
	a := notStarted(t, "unix", "")
	var got http.Header
	next := func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }
	refuses := handler(t, p, a, next)
	other := handler(t, p, a, next, "noQuorumStatus", "503")
	passes := handler(t, p, a, next, "onNoQuorum", "pass", "key_header", "Redlock-Key")
	for range 2 {
		w := pay(refuses, "42")
		want(t, w, http.StatusConflict, "no_quorum")
		if w.Header().Get("Retry-After") == "" || got != nil {
			t.Errorf("header %v, upstream %v", w.Header(), got)
		}
		want(t, pay(other, "42"), http.StatusServiceUnavailable, "no_quorum")
	}
	want(t, pay(passes, "42", "Fencing-Token", "1", "Fencing_token", "2", "Redlock.Key", "{}", "X-Other", "kept"), http.StatusOK, "")
	if len(got) != 1 || got.Get("X-Other") != "kept" {
		t.Errorf("the upstream gets %v", got)
	}
	if n := strings.Count(p.Log(), "no lock can be taken"); n != 1 || !strings.Contains(p.Log(), "test") {
		t.Errorf("%d lines say that the agent is away, want 1 with the name of the middleware: %s", n, p.Log())
	}
	a.start()
	want(t, pay(refuses, "42"), http.StatusOK, "")
	if got.Get("Fencing-Token") == "" {
		t.Error("no fence")
	}
	a.kill()
	want(t, pay(refuses, "42"), http.StatusConflict, "no_quorum")
}

// testKilled kills the agent while a request holds its lock: the request ends.
func testKilled(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		a.kill()
		<-r.Context().Done()
		if err := context.Cause(r.Context()); !strings.Contains(err.Error(), "lost") {
			t.Errorf("the context ends by %v", err)
		}
	})
	pay(h, "42")
}

// testHangs has a network that carries nothing any more: the request ends before another one has the lock.
func testHangs(t *testing.T, p *Plugin) {
	a := newAgent(t, "tcp", "")
	wire := newWire(t, a.listen)
	locker := newLocker(t, a.servers)
	real := a.address
	a.address = "http://" + wire.address()
	ended := make(chan struct{})
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		wire.hang()
		<-r.Context().Done()
		close(ended)
	}, "ttl", "6s", "wait", "1m")
	done := make(chan struct{})
	go func() { defer close(done); pay(h, "42") }()
	<-ended
	<-done
	wire.cut()
	a.address = real
	a.kill() // which would have renewed the lock for as long as it has the connection
	lock, err := locker.Lock(t.Context(), "order:42")
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Unlock()
}

// testRestarts restarts the agent under kept connections: the next request has its lock.
func testRestarts(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	h := handler(t, p, a, nothing)
	for range 20 {
		want(t, pay(h, "42"), http.StatusOK, "")
		a.kill()
		a.start()
	}
	redistest.RequireNoKeys(t, a.servers)
}

// testReplaced replaces the agent under kept connections and under a request that waits in its line: none is refused, also with a rule that
// doesn't wait, nor one with a body.
func testReplaced(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	var got string
	plain := handler(t, p, a, nothing)
	reads := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = string(body)
	}, "key", "order:{body.id}")
	body := `{"id":7,"text":"` + strings.Repeat("x", 100<<10) + `"}`
	for range 3 {
		want(t, pay(plain, "42"), http.StatusOK, "")
		a.replace()
		want(t, pay(plain, "42"), http.StatusOK, "")
		a.replace()
		got = ""
		want(t, send(reads, body), http.StatusOK, "")
		if got != body {
			t.Errorf("the upstream got %d of %d bytes", len(got), len(body))
		}
	}
	began, end := make(chan struct{}, 2), make(chan struct{})
	waits := handler(t, p, a, func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-end }, "wait", "10m")
	done := make(chan *httptest.ResponseRecorder, 2)
	for waiting := range 2 {
		go func() { done <- pay(waits, "42") }()
		if waiting == 0 {
			<-began
		}
	}
	eventually(t, "it waits", func() bool { return a.locker.Status().Waiting == 1 })
	a.replace()
	close(end) // the agent before still has the lock of the first
	for range 2 {
		want(t, <-done, http.StatusOK, "")
	}
}

// testPasses has an agent refuse the plugin itself, after a part of the body was sent to it: the upstream gets the whole body.
func testPasses(t *testing.T, p *Plugin) {
	a := newAgent(t, "tcp", "secret")
	var got string
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = string(body)
	}, "token", "secret", "key", "order:{body.id}", "onNoQuorum", "pass")
	a.kill()
	a.token = "renewed"
	a.start()
	body := `{"id":7,"text":"` + strings.Repeat("x", 500<<10) + `"}`
	want(t, send(h, body), http.StatusOK, "")
	if got != body {
		t.Errorf("the upstream got %d of %d bytes", len(got), len(body))
	}
}

// send sends a body to a handler, and returns the response.
func send(h http.Handler, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w
}

// testOthers has something else in place of the agent: the log says what.
func testOthers(t *testing.T, p *Plugin) {
	for version, says := range map[string]string{"": "something else than an agent", "2": "speaks version 2 of its protocol, and this plugin version 1"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if version != "" {
				w.Header().Set("Redlock-Agent", version)
			}
			_, _ = io.WriteString(w, "{}\n")
		}))
		defer s.Close()
		h, err := p.New(t.Context(), http.HandlerFunc(nothing), map[string]any{"agent": s.URL, "key": "{path.1}"})
		if err != nil {
			t.Fatal(err)
		}
		want(t, pay(h, "42"), http.StatusConflict, "no_quorum")
		if !strings.Contains(p.Log(), says) {
			t.Errorf("the log doesn't say %q: %s", says, p.Log())
		}
	}
	a := newAgent(t, "tcp", "secret")
	h := handler(t, p, a, nothing, "token", "wrong")
	want(t, pay(h, "42"), http.StatusConflict, "no_quorum")
	if !strings.Contains(p.Log(), "token") || strings.Contains(p.Log(), "wrong\"") {
		t.Errorf("the log doesn't say that the token is wrong: %s", p.Log())
	}
}

// testSettings loads wrong settings: each is an error that names it and the middleware, or in the log if the agent comes later.
func testSettings(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	for says, wrong := range map[string][]any{
		"wiat":             {"wiat", "1s"},
		"nonsense":         {"key", "{nonsense}"},
		"want unix:":       {"agent", "10.0.0.1:6379"},
		"give one":         {"token", "secret", "tokenFile", "/nonexistent"},
		"/nonexistent":     {"tokenFile", "/nonexistent"},
		"can't be sent to": {"key", make(chan int)},
	} {
		_, err := p.New(t.Context(), http.HandlerFunc(nothing), with(a, wrong...))
		if err == nil || !strings.Contains(err.Error(), "middleware test: ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: error %v, want %q", wrong, err, says)
		}
	}
	a.kill()
	h := handler(t, p, a, nothing, "key", "{nonsense}")
	a.start()
	want(t, pay(h, "42"), http.StatusConflict, "no_quorum")
	if !strings.Contains(p.Log(), "nonsense") {
		t.Errorf("the log doesn't say what is wrong: %s", p.Log())
	}
}
