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
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// testFence has clients send fences of their own: the upstream gets one, ours, and other handlers none.
func testFence(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	var got http.Header
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }, "on_missing_key", "pass", "keyHeader", "Redlock-Key")
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/orders/42", nil)
	forged := map[string][]string{"Fencing-Token": {"1"}, "Fencing_Token": {"2"}, "fencing.token": {"3"}, "Redlock-Key": {"{}"}, "Redlock_Key": {"{}"}, "Redlock-Slot": {"4"}, "redlock_slot": {"5"}, "X-Other": {"kept"}}
	for name, values := range forged {
		r.Header[name] = values
	}
	h.ServeHTTP(w, r)
	want(t, w, http.StatusOK, "")
	if len(got) != 3 || got.Get("Redlock-Key") != `{"path.1":["42"]}` || got.Get("X-Other") != "kept" || got.Get("Fencing-Token") == "" || got.Get("Fencing-Token") == "1" {
		t.Errorf("the upstream gets %v", got)
	}
	if len(r.Header) != 1 {
		t.Errorf("other handlers have %v after the lock is released", r.Header)
	}
	r = httptest.NewRequest(http.MethodPost, "/", nil) // has no key
	for name, values := range forged {
		r.Header[name] = values
	}
	h.ServeHTTP(httptest.NewRecorder(), r)
	if len(got) != 1 || got.Get("X-Other") != "kept" {
		t.Errorf("without a lock the upstream gets %v", got)
	}
}

// testTrailers sends trailers, of which the upstream must see no fence, and none that was not announced.
func testTrailers(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	for _, key := range []string{"order:{path.1}", "order:{body.id}"} {
		h := handler(t, p, a, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %v %v", body, err, r.Trailer)
		}, "key", key)
		s := httptest.NewServer(h)
		for announced, want := range map[string]string{"": `{"id":7} <nil> map[]`, "Trailer: Checksum, Fencing-Token\r\n": `{"id":7} <nil> map[Checksum:[abc]]`} {
			client, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(client, "POST /orders/42 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"+announced+
				"\r\n8\r\n{\"id\":7}\r\n0\r\nChecksum: abc\r\nFencing-Token: 9\r\nX-Order: 43\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := io.ReadAll(response.Body); string(got) != want {
				t.Errorf("%s: with %q the upstream got %q, want %q", key, announced, got, want)
			}
			_ = client.Close()
		}
		s.Close()
	}
}

// testBodies locks by a field of the body, which the upstream gets whole.
func testBodies(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	var got string
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = string(body)
	}, "key", "order:{body.id}", "dedupe", "{header.X-Delivery}")
	s := httptest.NewServer(h)
	defer s.Close()
	send := func(body string) int {
		r, err := http.NewRequest(http.MethodPost, s.URL+"/orders", io.MultiReader(strings.NewReader(body))) // chunked
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		response, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for _, size := range []int{1, 30 << 10, 500 << 10} {
		body := `{"id":42,"text":"` + strings.Repeat("x", size) + `"}`
		if status := send(body); status != http.StatusOK || got != body {
			t.Errorf("%d bytes: status %d, and the upstream got %d of %d", size, status, len(got), len(body))
		}
	}
	got = ""
	if status := send(`{"id":42,"text":"` + strings.Repeat("x", 2<<20) + `"}`); status != http.StatusRequestEntityTooLarge || got != "" {
		t.Errorf("too large: status %d, upstream got %d bytes", status, len(got))
	}
	if status := send(`{"id":`); status != http.StatusBadRequest || got != "" {
		t.Errorf("broken JSON: status %d, upstream got %q", status, got)
	}
}

// testSlowBody: a refusal doesn't wait for the rest of the body, and nobody reads that when the handler has returned: Traefik counts what
// was read.
func testSlowBody(t *testing.T, p *Plugin) {
	h := handler(t, p, newAgent(t, "unix", ""), nothing, "key", "order:{body.id}", "body_timeout", "100ms")
	outlives := make(chan bool, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := &readNow{ReadCloser: r.Body}
		r.Body = body
		h.ServeHTTP(w, r)
		outlives <- body.reading.Load()
	}))
	defer s.Close()
	slow := func() net.Conn {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(bound))
		_, _ = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{\"id")
		return conn
	}
	response, err := http.ReadResponse(bufio.NewReader(slow()), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusRequestTimeout || !response.Close {
		t.Errorf("status %d, and the connection is closed: %v", response.StatusCode, response.Close)
	}
	if <-outlives {
		t.Error("a read is under way")
	}
	for range 10 {
		conn := slow()
		time.Sleep(time.Millisecond)
		_ = conn.Close()
		if <-outlives {
			t.Error("a read is under way when the client has left")
		}
	}
}

// readNow knows whether it is being read.
type readNow struct {
	io.ReadCloser
	reading atomic.Bool
}

func (b *readNow) Read(p []byte) (int, error) {
	b.reading.Store(true)
	defer b.reading.Store(false)
	return b.ReadCloser.Read(p)
}

// testRefusals checks that the agent's responses come through.
func testRefusals(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	began, end := make(chan struct{}), make(chan struct{})
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") != "" {
			close(began)
			<-end
		}
	})
	want(t, pay(h, ""), http.StatusBadRequest, "missing_key")
	want(t, pay(h, "/42"), http.StatusBadRequest, "bad_key")
	want(t, pay(h, "42", "Connection", "Upgrade", "Upgrade", "websocket"), http.StatusForbidden, "upgrade")
	done := make(chan struct{})
	go func() { defer close(done); pay(h, "42", "X-Hold", "1") }()
	<-began
	for status, other := range map[int]http.Handler{423: h, 429: handler(t, p, a, nothing, "held_status", 429, "wait", "50ms")} {
		got := pay(other, "42")
		want(t, got, status, "held")
		if got.Header().Get("Retry-After") == "" || got.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(got.Body.String(), `"status"`) {
			t.Errorf("held: %v %s", got.Header(), got.Body)
		}
	}
	close(end)
	<-done
	want(t, pay(h, "42"), http.StatusOK, "")
	for _, s := range a.servers[1:] {
		s.Kill()
	}
	want(t, pay(h, "42"), http.StatusConflict, "no_quorum")
}

// testClientLeaves has clients leave while they are served: the request runs to its end, unless the rule says otherwise.
func testClientLeaves(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	began, end := make(chan context.Context, 1), make(chan struct{})
	next := func(_ http.ResponseWriter, r *http.Request) {
		began <- r.Context()
		<-end
	}
	for _, setting := range []string{"run", "cancel"} {
		h := handler(t, p, a, next, "on_client_abort", setting)
		ctx, leave := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); payIn(ctx, h, "42") }()
		running := <-began
		leave()
		if setting == "cancel" {
			<-running.Done()
		}
		want(t, pay(h, "42"), http.StatusLocked, "held")
		if setting == "run" && running.Err() != nil {
			t.Error("the request of a client that left was ended, although its upstream may still be working")
		}
		end <- struct{}{}
		<-done
		redistest.RequireNoKeys(t, a.servers)
	}
}

// testLeavesLine has a client leave while it waits: the next in line doesn't wait for it.
func testLeavesLine(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	began, end := make(chan struct{}, 9), make(chan struct{})
	h := handler(t, p, a, func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-end }, "wait", "10m")
	done := make(chan struct{}, 9)
	go func() { pay(h, "42"); done <- struct{}{} }()
	<-began
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan *httptest.ResponseRecorder)
	go func() { left <- payIn(ctx, h, "42") }()
	eventually(t, "it waits", func() bool { return a.locker.Status().Waiting == 1 })
	leave()
	if w := <-left; w.Code != 499 {
		t.Errorf("status %d, want 499", w.Code)
	}
	eventually(t, "nobody waits", func() bool { return a.locker.Status().Waiting == 0 })
	close(end)
	<-done
	want(t, pay(h, "42"), http.StatusOK, "")
}

// testReloads creates the handler 50 times, as Traefik does at each change of its configuration, with requests between.
func testReloads(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	first := handler(t, p, a, nothing)
	want(t, pay(first, "42"), http.StatusOK, "")
	goroutines := runtime.NumGoroutine()
	for range 50 {
		want(t, pay(handler(t, p, a, nothing), "42"), http.StatusOK, "")
	}
	want(t, pay(first, "42"), http.StatusOK, "") // a request that still uses the old handler
	eventually(t, "there are about as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	redistest.RequireNoKeys(t, a.servers)
}
