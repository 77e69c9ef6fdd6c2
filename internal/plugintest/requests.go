package plugintest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// testClientLeaves has clients leave while they wait, and while they are served.
func testClientLeaves(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	began, end := make(chan context.Context, 1), make(chan struct{})
	h := handler(t, load(t), with(servers, "wait", "1m"), func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/orders/42/pay" {
			began <- r.Context()
			<-end
		}
	})
	served(t, h)
	ctx, leave := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); payIn(ctx, h, "42") }()
	running := <-began
	waiter, tired := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer tired()
	wantStatus(t, payIn(waiter, h, "42"), 499)
	leave()
	time.Sleep(100 * time.Millisecond)
	if running.Err() != nil {
		t.Error("the request of a client that left was cancelled, although its upstream may still be working")
	}
	again, tired := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer tired()
	wantStatus(t, payIn(again, h, "42"), 499) // the lock is still held
	close(end)
	<-done
	redistest.RequireNoKeys(t, servers)
}

func testPanic(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	h := handler(t, load(t), with(servers), func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/orders/42/pay" {
			panic(http.ErrAbortHandler)
		}
	})
	served(t, h)
	for range 3 {
		func() {
			defer func() {
				if p := recover(); p != http.ErrAbortHandler {
					t.Errorf("panic %v, want that of the handler", p)
				}
			}()
			pay(h, "42")
		}()
	}
	redistest.RequireNoKeys(t, servers)
}

// testReloads creates the handler 50 times, as Traefik does at each change of its configuration, with requests between.
func testReloads(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	new := load(t)
	goroutines := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	reload := func(settings map[string]any) http.Handler {
		cancel() // before it calls New, as Traefik does
		ctx, cancel = context.WithCancel(context.Background())
		h, err := new(ctx, http.HandlerFunc(nothing), settings)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := reload(with(servers))
	served(t, h)
	for range 50 {
		h = reload(with(servers))
		wantStatus(t, pay(h, "42"), http.StatusOK)
		if n := servers[0].Connections(); n != 1 {
			t.Errorf("%d connections to a master, want 1", n)
		}
	}
	held := h
	for _, timeout := range []string{"201ms", "202ms", "203ms"} { // other settings, and so other lockers
		served(t, reload(with(servers, "timeout", timeout)))
	}
	wantStatus(t, pay(held, "42"), http.StatusOK) // a request that still uses the old handler
	cancel()
	for _, s := range servers {
		eventually(t, "all connections are closed", func() bool { return s.Connections() == 0 })
	}
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	redistest.RequireNoKeys(t, servers)
}

// testAnswers checks the answers over a real connection.
func testAnswers(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	new := load(t)
	began, end := make(chan struct{}), make(chan struct{})
	hold := func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") != "" {
			close(began)
			<-end
		}
	}
	echo := func(w http.ResponseWriter, r *http.Request) {
		hold(w, r)
		_, _ = io.WriteString(w, strings.Join(r.Header.Values("Fencing-Token"), ",")+r.Header.Get("Fencing_Token"))
	}
	ask := func(h http.Handler, path string, headers ...string) (int, http.Header, string) {
		s := httptest.NewServer(h)
		defer s.Close()
		r, err := http.NewRequest(http.MethodPost, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header[headers[i]] = []string{headers[i+1]}
		}
		answer, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header, string(body)
	}
	h := handler(t, new, with(servers), echo)
	served(t, h)
	if status, _, body := ask(h, "/orders/42/pay", "Fencing-Token", "1", "Fencing_Token", "2"); status != 200 || len(body) != 16 {
		t.Errorf("%d %q: want one fence, ours", status, body)
	}
	if status, header, body := ask(h, "/orders"); status != 400 || header.Get("Redlock-Outcome") != "missing_key" || !strings.Contains(body, "{path.1}") {
		t.Errorf("without a key: %d %q %s", status, header, body)
	}
	if status, header, _ := ask(h, "/orders//42"); status != 400 || header.Get("Redlock-Outcome") != "bad_key" {
		t.Errorf("unclean path: %d %q", status, header)
	}
	if status, _, body := ask(handler(t, new, with(servers, "onMissingKey", "pass"), echo), "/orders", "Fencing-Token", "1"); status != 200 || body != "" {
		t.Errorf("passed: %d %q, want no fence", status, body)
	}
	if status, header, _ := ask(h, "/orders/42", "Connection", "Upgrade", "Upgrade", "websocket"); status != 403 || header.Get("Redlock-Outcome") != "upgrade" {
		t.Errorf("upgrade: %d %q", status, header)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := httptest.NewRequest(http.MethodPost, "/orders/42", nil)
		r.Header.Set("X-Hold", "1")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-began
	for status, h := range map[int]http.Handler{423: h, 429: handler(t, new, with(servers, "heldStatus", 429, "wait", "50ms"), echo)} {
		if got, header, body := ask(h, "/orders/42"); got != status || header.Get("Retry-After") == "" || header.Get("Redlock-Outcome") != "held" || strings.Contains(body, "42\"") {
			t.Errorf("held: %d %q %s, want %d", got, header, body, status)
		}
	}
	close(end)
	<-done
	for _, s := range servers[1:] {
		s.Kill()
	}
	if status, header, _ := ask(handler(t, new, with(servers, "noQuorumStatus", 503), echo), "/orders/1"); status != 503 || header.Get("Redlock-Outcome") != "no_quorum" {
		t.Errorf("no quorum: %d %q", status, header)
	}
	if status, _, body := ask(handler(t, new, with(servers, "onNoQuorum", "pass"), echo), "/orders/1"); status != 200 || body != "" {
		t.Errorf("no quorum, passed: %d %q", status, body)
	}
}

// testTrailers sends trailers, of which the upstream must see no fence, and none that was not announced.
func testTrailers(t *testing.T, load func(testing.TB) New) {
	h := handler(t, load(t), with(redistest.Start(t, 3)), func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v %v", body, err, r.Trailer)
	})
	served(t, h)
	s := httptest.NewServer(h)
	defer s.Close()
	for announced, want := range map[string]string{"": "x <nil> map[]", "Trailer: Checksum, Fencing-Token\r\n": "x <nil> map[Checksum:[abc]]"} {
		client, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		_, _ = io.WriteString(client, "POST /orders/42/pay HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"+announced+
			"\r\n1\r\nx\r\n0\r\nChecksum: abc\r\nFencing-Token: 9\r\nX-Order: 43\r\n\r\n")
		answer, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(answer.Body); string(got) != want {
			t.Errorf("with %q the upstream got %q, want %q", announced, got, want)
		}
	}
}

// testSettings loads wrong settings: each is refused by an error that names it and shows no password.
func testSettings(t *testing.T, load func(testing.TB) New) {
	new := load(t)
	for want, wrong := range map[string][]any{
		"masters":                {"masters", []string(nil)},
		"number 1 of 1":          {"masters", []string{"http://user:secret@x"}},
		"numbers 1 and 2":        {"masters", []string{"redis://x", "redis://:secret@x:6379"}},
		"parameters":             {"masters", []string{"redis://x?secret=1"}},
		"has no scheme":          {"masters", []string{"redis:6379"}}, // not the port 6379 of localhost
		"not one host":           {"masters", []string{"redis://x,y"}},
		"brackets":               {"masters", []string{"redis://::1"}},
		"key \"\"":               {"key", ""},
		"nothing separates":      {"key", "{path.0}{path.1}"},
		"reads no bodies":        {"key", "{body.id}"},
		"bodies; to lock by a":   {"key", "{payload.id}"},
		"and & makes several":    {"key", "{header.X-Customer&header.X-Order}"},
		"use {path.N}":           {"key", "{path.id}"},
		"unknown placeholder":    {"key", "{nonsense}"},
		"use {host}":             {"key", "{header.host}"},
		"Trailer} is not among":  {"key", "{header.trailer}"},
		"\"X Order\" is not the": {"key", "{header.X Order}"},
		"not the name of a coo":  {"key", "{cookie.a;b}"},
		"a space stands":         {"key", "{path.1|header.X-Order }"},
		"take it out":            {"key", "{query. id}"},
		"unknown kind":           {"key", "{path.1:nonsense}"},
		"wait":                   {"wait", "soon"},
		"ttl 50s":                {"ttl", "50s"},
		"ttl 1s":                 {"ttl", "1s", "timeout", "600ms"},
		"maxHold":                {"maxHold", "0s"},
		"maxTTL":                 {"maxTTL", "1"},
		"restartGuard":           {"restartGuard", "1s"},
		"heldStatus 200":         {"heldStatus", 200},
		"noQuorumStatus 600":     {"noQuorumStatus", 600},
		"onMissingKey":           {"onMissingKey", "ignore"},
		"onNoQuorum":             {"onNoQuorum", "ignore"},
		"fenceHeader":            {"fenceHeader", "a b"},
		"key is made of this":    {"fenceHeader", "x_order", "key", "order:{path.1|header.X-Order}"},
		"fenceHeader \"te\"":     {"fenceHeader", "te"},
		"keyPrefix":              {"keyPrefix", "a{b}"},
		"passwordFile":           {"passwordFile", "/nonexistent"},
		"give one of them":       {"passwordFile", "/nonexistent", "password", "secret"},
		"unknown settings: wiat": {"unknown", map[string]any{"wiat": "1s"}},
	} {
		settings := map[string]any{"masters": []string{"redis://127.0.0.1:1"}, "key": "order:{path.1}"}
		for i := 0; i < len(wrong); i += 2 {
			settings[wrong[i].(string)] = wrong[i+1]
		}
		_, err := new(context.Background(), http.HandlerFunc(nothing), settings)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: error %v, want %q", wrong, err, want)
		}
	}
}
