package middleware_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// requireProblem checks a response of the middleware itself.
func requireProblem(t *testing.T, got received, status int, kind string) {
	t.Helper()
	var body struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Errorf("body %q: %v", got.body, err)
	}
	if got.StatusCode != status || body.Status != status {
		t.Errorf("status %d, in the body %d, want %d", got.StatusCode, body.Status, status)
	}
	if !strings.HasSuffix(body.Type, "/docs/problems.md#"+kind) || body.Title == "" {
		t.Errorf("type %q and title %q, want a type of %s", body.Type, body.Title, kind)
	}
	if ct := got.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q", ct)
	}
	if cc := got.Header.Get("Cache-Control"); cc != "no-store" {
		t.Errorf("Cache-Control %q", cc)
	}
}

func TestServed(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		turn, found := middleware.TurnFromContext(r.Context())
		if !found || turn.Key != "order:42" || turn.Outcome != middleware.OutcomeAcquired || turn.Lock == nil || turn.Waited < 0 {
			t.Errorf("turn %+v, %v", turn, found)
		}
		if lock, err := l.TryLock(r.Context(), "order:42"); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("lock inside the handler: %v, %v, want ErrHeld", lock, err)
		}
		w.Header().Set("X-Test", "1")
		w.WriteHeader(http.StatusCreated)
		ok(w, r)
	}, middleware.Rule{}))
	for range 30 { // a client that has its response never meets the lock of that request
		got := post(t, server.URL, "Order", "42")
		if got.StatusCode != http.StatusCreated || got.body != "served" || got.Header.Get("X-Test") != "1" {
			t.Fatalf("response %d %q", got.StatusCode, got.body)
		}
	}
	if _, found := middleware.TurnFromContext(t.Context()); found {
		t.Error("TurnFromContext finds a turn outside a request")
	}
}

func TestHeld(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "order:42")
	server := serve(t, orders(l, ok, middleware.Rule{}))
	got := post(t, server.URL, "Order", "42")
	requireProblem(t, got, http.StatusLocked, "held")
	requireRetryAfter(t, got, time.Second) // how long requests take is not known yet
	if got := post(t, server.URL, "Order", "43"); got.body != "served" {
		t.Errorf("another key: %d %q", got.StatusCode, got.body)
	}
}

func TestStatusOptions(t *testing.T) {
	t.Parallel()
	l, noQuorum := newLocker(t, live), newLocker(t, dead)
	hold(t, l, "order:42")
	server := serve(t, orders(l, ok, middleware.Rule{HeldStatus: http.StatusTooManyRequests}))
	requireProblem(t, post(t, server.URL, "Order", "42"), http.StatusTooManyRequests, "held")
	server = serve(t, orders(noQuorum, ok, middleware.Rule{NoQuorumStatus: http.StatusServiceUnavailable}))
	requireProblem(t, post(t, server.URL, "Order", "42"), http.StatusServiceUnavailable, "no_quorum")
}

func TestNoQuorum(t *testing.T) {
	t.Parallel()
	server := serve(t, orders(newLocker(t, dead), ok, middleware.Rule{}))
	got := post(t, server.URL, "Order", "42")
	requireProblem(t, got, http.StatusConflict, "no_quorum")
	requireRetryAfter(t, got, time.Second)
	if strings.Contains(got.body, "127.0.0.1") {
		t.Errorf("the body names a master: %s", got.body)
	}

	server = serve(t, orders(newLocker(t, dead), func(w http.ResponseWriter, r *http.Request) {
		if turn, found := middleware.TurnFromContext(r.Context()); !found || turn.Outcome != middleware.OutcomeNoQuorum || turn.Lock != nil {
			t.Errorf("turn %+v, %v", turn, found)
		}
		ok(w, r)
	}, middleware.Rule{OnNoQuorum: middleware.Pass}))
	if got := post(t, server.URL, "Order", "42"); got.body != "served" {
		t.Errorf("passed: %d %q", got.StatusCode, got.body)
	}
	l := newLocker(t, live)
	hold(t, l, "order:42")
	server = serve(t, orders(l, ok, middleware.Rule{OnNoQuorum: middleware.Pass, OnMissingKey: middleware.Pass}))
	requireProblem(t, post(t, server.URL, "Order", "42"), http.StatusLocked, "held") // only requests without the key may pass
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, ok, middleware.Rule{}))
	got := post(t, server.URL)
	requireProblem(t, got, http.StatusBadRequest, "missing_key")
	if !strings.Contains(got.body, "{header.Order}") {
		t.Errorf("the body does not name the placeholder: %s", got.body)
	}
	requireProblem(t, post(t, server.URL, "Order", "42", "Order", "43"), http.StatusBadRequest, "bad_key")

	server = serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		if turn, found := middleware.TurnFromContext(r.Context()); !found || turn.Outcome != middleware.OutcomeMissingKey || turn.Key != "" || turn.Lock != nil {
			t.Errorf("turn %+v, %v", turn, found)
		}
		ok(w, r)
	}, middleware.Rule{OnMissingKey: middleware.Pass}))
	if got := post(t, server.URL); got.body != "served" {
		t.Errorf("passed: %d %q", got.StatusCode, got.body)
	}
	requireProblem(t, post(t, server.URL, "Order", "42", "Order", "43"), http.StatusBadRequest, "bad_key")

	for kind, err := range map[string]error{"missing_key": nil, "bad_key": errors.New("secret")} {
		server := serve(t, middleware.NewFunc(l, func(*http.Request) (string, error) { return "", err }, middleware.Rule{})(http.HandlerFunc(ok)))
		got := post(t, server.URL)
		requireProblem(t, got, http.StatusBadRequest, kind)
		if strings.Contains(got.body, "secret") {
			t.Errorf("the body shows the error of a KeyFunc: %s", got.body)
		}
	}
}

func TestClosedLocker(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, ok, middleware.Rule{}))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := post(t, server.URL, "Order", "42")
	requireProblem(t, got, http.StatusServiceUnavailable, "failed")
	requireRetryAfter(t, got, time.Second)
}

func TestWait(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	lock, err := l.TryLock(t.Context(), "order:42")
	if err != nil {
		t.Fatal(err)
	}
	arrived, served := make(chan bool, 1), make(chan middleware.Turn, 1)
	key := func(*http.Request) (string, error) {
		arrived <- true
		return "order:42", nil
	}
	server := serve(t, middleware.NewFunc(l, key, middleware.Rule{Wait: bound})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		served <- turn
	})))
	status := make(chan int, 1)
	go func() { status <- post(t, server.URL).StatusCode }()
	receive(t, arrived, "request")
	const busy = 50 * time.Millisecond
	select {
	case <-served:
		t.Fatal("it did not wait")
	case <-time.After(busy):
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if turn := receive(t, served, "the turn after the wait"); turn.Waited < busy {
		t.Errorf("Waited is %v, want at least %v", turn.Waited, busy)
	}
	if got := receive(t, status, "the response"); got != http.StatusOK {
		t.Errorf("status %d", got)
	}

	hold(t, l, "order:43")
	server = serve(t, orders(l, ok, middleware.Rule{Wait: 50 * time.Millisecond}))
	requireProblem(t, post(t, server.URL, "Order", "43"), http.StatusLocked, "held")
	server = serve(t, orders(newLocker(t, dead), ok, middleware.Rule{Wait: 50 * time.Millisecond}))
	requireProblem(t, post(t, server.URL, "Order", "43"), http.StatusConflict, "no_quorum")
}

func TestClientLeavesWhileWaiting(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "order:42")
	arrived, left := make(chan bool, 1), make(chan error, 1)
	key := func(*http.Request) (string, error) {
		arrived <- true
		return "order:42", nil
	}
	rule := middleware.CompileFunc(middleware.Rule{Wait: 6 * bound}, key)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		left <- rule.Serve(l, w, r, func(http.ResponseWriter, *http.Request) error {
			t.Error("served without the lock")
			return nil
		})
	}))
	req := newRequest(t, server.URL)
	ctx, leave := context.WithCancel(req.Context())
	go func() {
		receive(t, arrived, "request")
		leave()
	}()
	if resp, err := http.DefaultClient.Do(req.WithContext(ctx)); err == nil {
		_ = resp.Body.Close()
		t.Error("the client did not leave")
	}
	err := receive(t, left, "end of the wait")
	var refusal middleware.Refusal
	if !errors.As(err, &refusal) || refusal.Status() != 499 || refusal.Turn().Outcome != middleware.OutcomeCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, %+v, want status 499", err, refusal)
	}
}

// TestRelease ends the handler in every possible way. The TTL is longer than the test waits.
func TestRelease(t *testing.T) {
	t.Parallel()
	started := make(chan bool, 1)
	for name, end := range map[string]http.HandlerFunc{
		"return":                  ok,
		"return without response": func(http.ResponseWriter, *http.Request) {},
		"panic":                   func(http.ResponseWriter, *http.Request) { panic("test") },
		"abort":                   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"panic after write": func(w http.ResponseWriter, r *http.Request) {
			ok(w, r)
			panic("test")
		},
		"client leaves": func(_ http.ResponseWriter, r *http.Request) {
			started <- true
			<-r.Context().Done()
		},
		"hijack": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Errorf("hijack: %v", err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			_ = conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocker(t, live)
			var log safeBuffer
			server := serve(t, orders(l, end, middleware.Rule{Logger: slog.New(slog.NewTextHandler(&log, nil)), OnClientAbort: middleware.Cancel}))
			req := newRequest(t, server.URL, "Order", "42")
			ctx, leave := context.WithCancel(req.Context())
			defer leave()
			if name == "client leaves" {
				go func() {
					receive(t, started, "handler")
					leave()
				}()
			}
			if resp, err := http.DefaultClient.Do(req.WithContext(ctx)); err == nil {
				_ = resp.Body.Close()
			}
			requireFree(t, l, "order:42")
			if log.String() != "" {
				t.Errorf("log: %s", &log)
			}
		})
	}
}

func TestLeaseLost(t *testing.T) {
	t.Parallel()
	var log safeBuffer
	l := newLocker(t, live, redlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Write") != "" {
			ok(w, r)
		}
		select {
		case <-r.Context().Done():
			if cause := context.Cause(r.Context()); !errors.Is(cause, redlock.ErrLost) {
				t.Errorf("cause %v, want ErrLost", cause)
			}
		case <-time.After(bound):
			t.Error("the context did not end with the lease")
		}
	}, middleware.Rule{MaxHold: time.Second}))

	written := make(chan received, 1)
	go func() { written <- post(t, server.URL, "Order", "43", "Write", "1") }()
	got := post(t, server.URL, "Order", "42")
	requireProblem(t, got, http.StatusInternalServerError, "lost")
	if got.Header.Get("Retry-After") != "" {
		t.Errorf("Retry-After %q, want none: the outcome is unknown", got.Header.Get("Retry-After"))
	}
	if got := receive(t, written, "the other response"); got.StatusCode != http.StatusOK || got.body != "served" {
		t.Errorf("a written response was not kept: %d %q", got.StatusCode, got.body)
	}
	if err := l.Close(); err != nil { // Close waits for the log, which is written after the contexts have ended
		t.Error(err)
	}
	if n := strings.Count(log.String(), "msg=\"lease lost: another"); n != 2 {
		t.Errorf("%d lost leases in the log, want 2:\n%s", n, &log)
	}
}

// TestLostAndWritten writes in every possible way after the lock was lost. Only if no part of a final response has been written
// can there be another.
func TestLostAndWritten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write http.HandlerFunc
		want  int // 500 only if the response is ours
	}{
		"nothing": {func(http.ResponseWriter, *http.Request) {}, 500},
		"only headers": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Etag", `"x"`)
		}, 500},
		"early hints": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusEarlyHints) }, 500},
		"WriteHeader": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }, 202},
		"Write":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) }, 200},
		"WriteString": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }, 200},
		"ReadFrom":    {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("x")) }, 200},
		"Flush":       {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, 200},
		"FlushError":  {func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() }, 200},
		"Hijack": {func(w http.ResponseWriter, _ *http.Request) {
			conn, buffer, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Errorf("hijack: %v", err)
				return
			}
			_, _ = buffer.WriteString("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			_ = buffer.Flush()
			_ = conn.Close()
		}, 204},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocker(t, live)
			server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
				if err := l.Close(); err != nil { // ends all locks at once
					t.Error(err)
				}
				<-r.Context().Done() // soon: it is derived from two contexts
				if cause := context.Cause(r.Context()); !errors.Is(cause, redlock.ErrClosed) {
					t.Errorf("cause %v, want ErrClosed", cause)
				}
				c.write(w, r)
			}, middleware.Rule{}))
			got := post(t, server.URL, "Order", "42")
			if c.want == 500 {
				requireProblem(t, got, 500, "lost")
				if got.Header.Get("Content-Encoding") != "" || got.Header.Get("Etag") != "" {
					t.Errorf("headers of a body that was not written: %v", got.Header)
				}
			} else if got.StatusCode != c.want {
				t.Errorf("status %d, want %d", got.StatusCode, c.want)
			}
		})
	}
}

func TestKeyIsHashed(t *testing.T) {
	t.Parallel()
	sum := func(key string) string {
		s := sha256.Sum256([]byte(key))
		return "sha256:" + hex.EncodeToString(s[:])
	}
	longest := strings.Repeat("x", 200-len("order:"))
	for _, c := range []struct {
		value, want string
	}{
		{value: longest, want: "order:" + longest},
		{value: longest + "x", want: sum("order:" + longest + "x")},
	} {
		l := newLocker(t, live)
		server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
			if turn, _ := middleware.TurnFromContext(r.Context()); turn.Key != c.want {
				t.Errorf("key %q, want %q", turn.Key, c.want)
			}
			if _, err := l.TryLock(r.Context(), c.want); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("%q is not what is locked: %v", c.want, err)
			}
			ok(w, r)
		}, middleware.Rule{}))
		if got := post(t, server.URL, "Order", c.value); got.body != "served" {
			t.Errorf("response %d %q", got.StatusCode, got.body)
		}
	}
}

func TestKeyIsNeverShown(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	check := func(got received, status int) {
		t.Helper()
		if got.StatusCode != status {
			t.Errorf("status %d, want %d", got.StatusCode, status)
		}
		if strings.Contains(got.body+fmt.Sprint(got.Header), secret) {
			t.Errorf("the response shows the key: %v %s", got.Header, got.body)
		}
	}
	l, closing := newLocker(t, live), newLocker(t, live)
	hold(t, l, "order:"+secret)
	server := serve(t, orders(l, ok, middleware.Rule{Logger: logger}))
	check(post(t, server.URL, "Order", secret), http.StatusLocked)
	check(post(t, server.URL, "Order", secret, "Order", secret), http.StatusBadRequest)
	server = serve(t, orders(newLocker(t, dead), ok, middleware.Rule{Logger: logger}))
	check(post(t, server.URL, "Order", secret), http.StatusConflict)
	server = serve(t, orders(newLocker(t, dead), ok, middleware.Rule{Logger: logger, OnNoQuorum: middleware.Pass}))
	check(post(t, server.URL, "Order", secret), http.StatusOK)
	server = serve(t, orders(closing, func(http.ResponseWriter, *http.Request) { _ = closing.Close() }, middleware.Rule{Logger: logger}))
	check(post(t, server.URL, "Order", secret), http.StatusInternalServerError)

	if text := log.String(); strings.Contains(text, secret) || text == "" {
		t.Errorf("the log shows the key, or does not tell what happened:\n%s", text)
	}
}

// TestWriterKeepsItsInterfaces uses everything that a handler may do with the server's own writer.
func TestWriterKeepsItsInterfaces(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	next := make(chan bool)
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		if _, implements := w.(io.ReaderFrom); !implements {
			t.Error("no io.ReaderFrom")
		}
		if _, implements := w.(http.Flusher); !implements {
			t.Error("no http.Flusher")
		}
		if _, implements := w.(http.Hijacker); !implements {
			t.Error("no http.Hijacker")
		}
		controller := http.NewResponseController(w)
		for what, err := range map[string]error{
			"SetWriteDeadline": controller.SetWriteDeadline(time.Now().Add(time.Hour)),
			"SetReadDeadline":  controller.SetReadDeadline(time.Now().Add(time.Hour)),
			"EnableFullDuplex": controller.EnableFullDuplex(),
		} {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, _ = io.WriteString(w, "one\n")
		if err := controller.Flush(); err != nil {
			t.Errorf("Flush: %v", err)
		}
		<-next // the client has read the first line
		if n, err := io.Copy(w, strings.NewReader("two\n")); n != 4 || err != nil {
			t.Errorf("Copy: %d, %v", n, err)
		}
	}, middleware.Rule{}))
	resp, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != "one" {
		t.Errorf("first line %q", lines.Text())
	}
	close(next)
	if !lines.Scan() || lines.Text() != "two" {
		t.Errorf("second line %q", lines.Text())
	}

	plain := struct{ http.ResponseWriter }{httptest.NewRecorder()}
	rule := middleware.CompileFunc(middleware.Rule{}, func(*http.Request) (string, error) { return "plain", nil })
	_ = rule.Serve(l, plain, newRequest(t, "/"), func(w http.ResponseWriter, _ *http.Request) error {
		if _, implements := w.(http.Hijacker); implements {
			t.Error("the wrapper says that it can hijack where its writer can't")
		}
		return nil
	})
}

func TestHijackedConnectionWorks(t *testing.T) {
	t.Parallel()
	server := serve(t, orders(newLocker(t, live), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("hijack: %v", err)
			return
		}
		defer func() { _ = conn.Close() }()
		line, _ := buffer.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	}, middleware.Rule{AllowUpgrade: true}))
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello\n")
	got, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 101 ") || !strings.HasSuffix(string(got), "echo hello\n") {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestServeReturnsTheHandlersError: the Caddy module relies on it.
func TestServeReturnsTheHandlersError(t *testing.T) {
	t.Parallel()
	rule := middleware.CompileFunc(middleware.Rule{}, func(*http.Request) (string, error) { return "k", nil })
	failed := errors.New("handler failed")
	l := newLocker(t, live)
	w := httptest.NewRecorder()
	if err := rule.Serve(l, w, newRequest(t, "/"), func(http.ResponseWriter, *http.Request) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	switching := newLocker(t, live)
	err := rule.Serve(switching, httptest.NewRecorder(), newRequest(t, "/"), func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusSwitchingProtocols) // the last response on this connection
		return switching.Close()
	})
	if err != nil {
		t.Errorf("after 101: %v", err)
	}
	err = rule.Serve(l, w, newRequest(t, "/"), func(http.ResponseWriter, *http.Request) error {
		_ = l.Close()
		return failed
	})
	var refusal middleware.Refusal
	if !errors.As(err, &refusal) || refusal.Turn().Outcome != middleware.OutcomeLost || !errors.Is(err, failed) || !errors.Is(err, redlock.ErrClosed) {
		t.Errorf("error %v after the lock was lost, want both reasons", err)
	}
}
