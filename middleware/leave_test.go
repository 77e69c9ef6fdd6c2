package middleware_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Clients that leave while they wait are not served when their turn comes, whatever they had sent of their bodies.
func TestWaitersThatLeave(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	var served, inside atomic.Int32
	handler := orders(l, func(http.ResponseWriter, *http.Request) { served.Add(1) }, middleware.Rule{Wait: 10 * bound})
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside.Add(1)
		defer inside.Add(-1)
		handler.ServeHTTP(w, r)
	}))
	lock, err := l.TryLock(t.Context(), "order:42")
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]func() io.Reader{
		"none":              func() io.Reader { return nil },
		"small":             func() io.Reader { return strings.NewReader("body") },
		"of unknown length": func() io.Reader { return unknownLength{strings.NewReader("body")} },
		"large":             func() io.Reader { return strings.NewReader(strings.Repeat("x", 600_000)) },
		"large, unknown":    func() io.Reader { return unknownLength{strings.NewReader(strings.Repeat("x", 600_000))} },
	} {
		ctx, leave := context.WithCancel(t.Context())
		for range 4 {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, body())
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Order", "42")
			go func() {
				if resp, err := http.DefaultClient.Do(r); err == nil {
					_ = resp.Body.Close()
				}
			}()
		}
		eventually(t, name+": four wait", func() bool { return inside.Load() == 4 })
		leave()
		eventually(t, name+": nobody waits any more", func() bool { return inside.Load() == 0 })
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	requireFree(t, l, "order:42")
	if served.Load() > 0 {
		t.Errorf("%d were served", served.Load())
	}
}

// A body that is still arriving while its request waits delays nothing: neither a handler that reads all of it, nor the response
// of one that doesn't, nor a refusal.
func TestBodyOnItsWay(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	entered, onItsWay := make(chan bool, 1), make(chan bool, 1)
	rule := orders(l, func(w http.ResponseWriter, r *http.Request) {
		entered <- true
		if r.URL.Path == "/unread" {
			_, _ = io.WriteString(w, "unread")
			return
		}
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %v %v", body, err, r.Trailer)
	}, middleware.Rule{Wait: bound})
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unread" {
			r.Body = &halfBody{ReadCloser: r.Body, read: onItsWay}
		}
		rule.ServeHTTP(w, r)
	}))
	impatient := serve(t, orders(l, ok, middleware.Rule{Wait: 200 * time.Millisecond}))
	for _, length := range []string{"Content-Length: 8", "Transfer-Encoding: chunked\r\nTrailer: X-After, Fencing-Token"} {
		first, second, want := "half", "half", "halfhalf <nil> map[]"
		if strings.HasPrefix(length, "T") {
			first, second, want = "4\r\nhalf\r\n", "4\r\nhalf\r\n0\r\nX-After: v\r\nFencing-Token: 1\r\n\r\n", "halfhalf <nil> map[X-After:[v]]"
		}
		head := func(path string) string {
			return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nOrder: 42\r\n%s\r\n\r\n%s", path, length, first)
		}
		lock, err := l.TryLock(t.Context(), "order:42")
		if err != nil {
			t.Fatal(err)
		}
		conn := dial(t, server.Listener.Addr(), head("/read"))
		refused := dial(t, impatient.Listener.Addr(), head("/read"))
		if status, body := readResponse(t, refused); status != http.StatusLocked {
			t.Errorf("refusal: %d %s", status, body)
		}
		if err := lock.Unlock(); err != nil {
			t.Error(err)
		}
		receive(t, entered, "the handler")
		_, _ = io.WriteString(conn, second)
		if _, body := readResponse(t, conn); body != want {
			t.Errorf("%s: the handler has read %q, want %q", length, body, want)
		}

		if lock, err = l.TryLock(t.Context(), "order:42"); err != nil {
			t.Fatal(err)
		}
		conn = dial(t, server.Listener.Addr(), head("/unread"))
		receive(t, onItsWay, "the read of the second half")
		if err := lock.Unlock(); err != nil {
			t.Error(err)
		}
		receive(t, entered, "the handler that doesn't read")
		if _, body := readResponse(t, conn); body != "unread" {
			t.Errorf("%s: %q from one that doesn't read", length, body)
		}
	}
}

// halfBody reports the second read, which waits for the second half.
type halfBody struct {
	io.ReadCloser
	reads   int
	read    chan<- bool
	reading atomic.Bool
}

func (b *halfBody) Read(into []byte) (int, error) {
	b.reading.Store(true)
	defer b.reading.Store(false)
	if b.reads++; b.reads == 2 {
		b.read <- true
	}
	return b.ReadCloser.Read(into)
}

// TestRefusalBeforeTheBody: the body is too long to be read ahead. The refusal doesn't wait for it either.
func TestRefusalBeforeTheBody(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, ok, middleware.Rule{Wait: time.Second / 10, MaxBody: 1}))
	lock, err := l.TryLock(t.Context(), "order:42")
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, server.Listener.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\nContent-Length: 8\r\n\r\n")
	if status, body := readResponse(t, conn); status != http.StatusLocked {
		t.Errorf("%d %s", status, body)
	}
	_ = lock.Unlock()
}

// TestNoReadOutlivesTheRule: when a rule is done, nobody reads the body any more, whatever of it has come: servers, such as Caddy's,
// wrap it in what they look at then. A refusal doesn't wait for the rest of the body, and the rest isn't taken for a request.
func TestNoReadOutlivesTheRule(t *testing.T) {
	t.Parallel()
	unread := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "unread") })
	aborts := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	rule := func(key string, rule middleware.Rule, next http.Handler) func(*redlock.Locker, context.Context) http.Handler {
		return func(l *redlock.Locker, stopping context.Context) http.Handler {
			own := rule
			own.Shutdown = stopping
			return middleware.New(l, key, own)(next)
		}
	}
	waits, brief := middleware.Rule{Wait: bound}, 100*time.Millisecond
	stop := func(_ *redlock.Lock, stop func()) { stop() }
	unlock := func(held *redlock.Lock, _ func()) { _ = held.Unlock() }
	for name, test := range map[string]struct {
		handler func(l *redlock.Locker, stopping context.Context) http.Handler
		end     func(held *redlock.Lock, stop func()) // of the wait
		refused int                                   // before the rest of the body comes
	}{
		"refused": {rule("order:42", waits, unread), stop, http.StatusServiceUnavailable},
		"unread":  {rule("order:42", waits, unread), unlock, 0},
		"aborted": {rule("order:42", waits, aborts), unlock, 0},
		"slow":    {rule("order:{body.id}", middleware.Rule{BodyTimeout: brief}, unread), unlock, http.StatusRequestTimeout},
		"dry run": {rule("order:{body.id}", middleware.Rule{BodyTimeout: brief, DryRun: true}, unread), unlock, 0},
		"refused inside": {func(l *redlock.Locker, stopping context.Context) http.Handler {
			inside := rule("busy", middleware.Rule{}, unread)(l, stopping)
			return rule("order:42", middleware.Rule{Wait: bound, BufferResponse: new(true)}, inside)(l, stopping)
		}, unlock, http.StatusLocked},
		"refused by a second": {func(l *redlock.Locker, stopping context.Context) http.Handler {
			first, second := rule("free", middleware.Rule{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), rule("order:42", waits, unread)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				first(l, stopping).ServeHTTP(w, r)
				second(l, stopping).ServeHTTP(w, r)
			})
		}, stop, http.StatusServiceUnavailable},
	} {
		for _, length := range []string{"Content-Length: 8", "Transfer-Encoding: chunked"} {
			t.Run(name+" "+length, func(t *testing.T) {
				t.Parallel()
				l := newLocker(t, live)
				hold(t, l, "busy")
				held, err := l.TryLock(t.Context(), "order:42")
				if err != nil {
					t.Fatal(err)
				}
				stopping, stop := context.WithCancel(t.Context())
				handler := test.handler(l, stopping)
				pending, outlives, smuggled := make(chan bool, 1), make(chan bool, 1), make(chan bool, 1)
				server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/" {
						smuggled <- true
						return
					}
					body := &halfBody{ReadCloser: r.Body, read: pending}
					r.Body = body
					defer func() { outlives <- body.reading.Load() }()
					_ = http.NewResponseController(w).EnableFullDuplex() // as Caddy does if it is told so
					handler.ServeHTTP(w, r)
				}))
				first, second := "half", "half"
				if strings.HasPrefix(length, "T") {
					first, second = "4\r\nhalf\r\n", "4\r\nhalf\r\n0\r\n\r\n"
				}
				conn := dial(t, server.Listener.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+length+"\r\n\r\n"+first)
				select { // on a busy machine, all of body_timeout may pass before the second read
				case <-pending:
				case outlived := <-outlives:
					outlives <- outlived
				case <-time.After(bound):
					t.Fatal("no second read")
				}
				test.end(held, stop)
				if test.refused != 0 {
					if status, text := readResponse(t, conn); status != test.refused {
						t.Errorf("%d %s", status, text)
					}
					second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n" + second
				}
				_, _ = io.WriteString(conn, second)
				if receive(t, outlives, "the end of the rule") {
					t.Error("a read is under way")
				}
				if test.refused != 0 {
					_, _ = io.Copy(io.Discard, conn) // until the server closes it
				}
				if len(smuggled) > 0 {
					t.Error("the rest of the body is taken for a request")
				}
			})
		}
	}
}

// A refusal leaves the connection to a client that has sent its body.
func TestRefusalKeepsTheConnection(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "order:42")
	const size = 30_000
	for name, rule := range map[string]middleware.Rule{
		"read ahead":     {},
		"above max_body": {MaxBody: 1 << 10},
		"no room":        {MaxBody: size, BodyBudget: middleware.NewBudget(size)}, // of which half is for bodies that are read ahead
	} {
		rule.Wait = 50 * time.Millisecond
		conn := dial(t, serve(t, orders(l, ok, rule)).Listener.Addr(), "")
		responses := bufio.NewReader(conn)
		for range 3 {
			_, _ = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size))
			if status, text := nextResponse(t, responses); status != http.StatusLocked {
				t.Errorf("%s: %d %s", name, status, text)
			}
		}
	}
}

func dial(t *testing.T, addr net.Addr, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(bound))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

func readResponse(t *testing.T, conn net.Conn) (status int, body string) {
	t.Helper()
	return nextResponse(t, bufio.NewReader(conn))
}

func nextResponse(t *testing.T, from *bufio.Reader) (status int, body string) {
	t.Helper()
	resp, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, text.String()
}

// When the server is about to stop, requests that wait are refused at once, and those that hold a lock are served.
func TestShutdown(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	inside, released := make(chan bool, 1), make(chan bool)
	release := sync.OnceFunc(func() { close(released) })
	defer release()
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		inside <- true
		<-released
		ok(w, r)
	}, middleware.Rule{Wait: 10 * bound, Shutdown: stopping}))
	server.Config.RegisterOnShutdown(stop)

	holder := make(chan received, 1)
	go func() { holder <- post(t, server.URL, "Order", "42") }()
	receive(t, inside, "the holder")
	waiters := make(chan received, 3)
	for range cap(waiters) {
		go func() { waiters <- post(t, server.URL, "Order", "42") }()
	}
	eventually(t, "all wait", func() bool { return l.Status().Waiting == cap(waiters) }) // otherwise nobody accepts their connections
	down := make(chan error, 1)
	go func() { down <- server.Config.Shutdown(t.Context()) }()
	for range cap(waiters) {
		got := receive(t, waiters, "a refusal, while the holder runs")
		requireProblem(t, got, http.StatusServiceUnavailable, "stopping")
		requireRetryAfter(t, got, time.Second)
	}
	release()
	if got := receive(t, holder, "the holder's response"); got.body != "served" {
		t.Errorf("the holder: %d %s", got.StatusCode, got.body)
	}
	if err := receive(t, down, "the end of Shutdown"); err != nil {
		t.Error(err)
	}
	if _, err := l.TryLock(t.Context(), "order:42"); errors.Is(err, redlock.ErrHeld) {
		t.Error("the key is held")
	}
}
