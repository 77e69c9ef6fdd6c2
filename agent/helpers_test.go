package agent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(benchSocket); socket != "" {
		if err := runClient(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const (
	// bound is the time for what should happen at once, even on a busy machine.
	bound = 20 * time.Second
	// longTTL is for locks that must not expire while a test waits for their release.
	longTTL = 3 * bound
)

var live = []string{"memory://a", "memory://b", "memory://c"}

func newLocker(t testing.TB, urls []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(urls, append([]redlock.Option{redlock.WithMaxTTL(2 * longTTL), redlock.WithTimeout(time.Second), redlock.WithTTL(longTTL), redlock.WithRestartGuard(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// inBubble runs a test of an agent in virtual time, with three servers.
func inBubble(t *testing.T, test func(t *testing.T, net *simnet.Net, locker *redlock.Locker, client *http.Client)) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		locker := net.Locker(t)
		p := newPipes()
		client := p.client(t)
		client.Timeout = 0
		serveOn(t, agent.New(locker), p)
		test(t, net, locker, client)
	})
}

// serve serves an agent on a Unix socket, or on a TCP address if network is "tcp", and returns a client of it.
func serve(t testing.TB, network string, a *agent.Agent) *http.Client {
	t.Helper()
	l := listen(t, network)
	client := clientOf(t, l)
	serveOn(t, a, l)
	return client
}

// listen returns a listener on a Unix socket, or on a TCP address.
func listen(t testing.TB, network string) net.Listener {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveOn serves an agent until the end of the test.
func serveOn(t testing.TB, a *agent.Agent, listeners ...net.Listener) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx, bound, listeners...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
}

// clientOf returns a client of an agent that listens there.
func clientOf(t testing.TB, l net.Listener) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, l.Addr().Network(), l.Addr().String())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// held is a request that holds a lock, or waits for one.
type held struct {
	t        testing.TB
	cancel   context.CancelFunc
	body     *io.PipeWriter // for marks; nil if the body was sent as a whole
	response *http.Response
	lines    *bufio.Reader
}

type line struct {
	Fence       uint64  `json:"fence"`
	Slot        *int    `json:"slot"`
	Mark        int64   `json:"mark"`
	ValidMS     int64   `json:"valid_ms"`
	Lost        string  `json:"lost"`
	Released    *bool   `json:"released"`
	Unconfirmed bool    `json:"unconfirmed"`
	Forgotten   bool    `json:"forgotten"`
	Detail      string  `json:"detail"`
	Pass        bool    `json:"pass"`
	Outcome     string  `json:"outcome"`
	Set         headers `json:"set"`
	Strip       []string
}

type headers map[string][]string

// post sends a request whose body stays open, and returns the response.
func post(t testing.TB, client *http.Client, path, body string) *held {
	t.Helper()
	pr, pw := io.Pipe()
	h := &held{t: t, body: pw}
	h.send(client, path, io.MultiReader(strings.NewReader(body+"\n"), pr))
	return h
}

// postWhole sends a request with a Content-Length, as curl -d does.
func postWhole(t testing.TB, client *http.Client, path, body string) *held {
	t.Helper()
	h := &held{t: t}
	h.send(client, path, strings.NewReader(body))
	return h
}

func (h *held) send(client *http.Client, path string, body io.Reader) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	h.t.Cleanup(h.close)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://redlock"+path, body)
	if err != nil {
		h.t.Fatal(err)
	}
	if h.response, err = client.Do(r); err != nil {
		h.t.Fatal(err)
	}
	h.lines = bufio.NewReader(h.response.Body)
}

// next returns the next line, or io.EOF.
func (h *held) next() (l line, err error) {
	h.t.Helper()
	text, err := h.lines.ReadBytes('\n')
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(text, &l); err != nil {
		h.t.Fatalf("line %q: %v", text, err)
	}
	return l, nil
}

// first requires that the lock is had, and returns the first line.
func (h *held) first() line {
	h.t.Helper()
	if h.response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(h.response.Body)
		h.t.Fatalf("status %d: %s", h.response.StatusCode, text)
	}
	l, err := h.next()
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// mark sends a mark.
func (h *held) mark() {
	h.t.Helper()
	if _, err := io.WriteString(h.body, "\n"); err != nil {
		h.t.Fatal(err)
	}
}

// answer returns the line for a mark, behind those of renewals.
func (h *held) answer(mark int64) line {
	h.t.Helper()
	for {
		l, err := h.next()
		if err != nil || l.Lost != "" {
			h.t.Fatalf("%+v, %v: want a line for mark %d", l, err, mark)
		}
		if l.Mark >= mark {
			return l
		}
	}
}

// end ends the body, and returns the last line.
func (h *held) end() (last line) {
	h.t.Helper()
	_ = h.body.Close()
	for {
		l, err := h.next()
		if errors.Is(err, io.EOF) {
			return last
		}
		if err != nil {
			h.t.Fatal(err)
		}
		last = l
	}
}

// close breaks the connection off.
func (h *held) close() {
	h.cancel()
	if h.response != nil {
		_ = h.response.Body.Close()
	}
	if h.body != nil {
		_ = h.body.Close()
	}
}

// requireFree fails if the key is not freed well before its TTL.
func requireFree(t testing.TB, l *redlock.Locker, key string) {
	t.Helper()
	lock, err := l.Lock(context.Background(), key, redlock.WithWait(bound))
	if err != nil {
		t.Fatalf("key %q was not released: %v", key, err)
	}
	if err := lock.Unlock(); err != nil {
		t.Errorf("unlock %q: %v", key, err)
	}
}

func requireHeld(t testing.TB, l *redlock.Locker, key string) {
	t.Helper()
	lock, err := l.TryLock(context.Background(), key)
	if err == nil {
		_ = lock.Unlock()
	}
	if !errors.Is(err, redlock.ErrHeld) {
		t.Fatalf("key %q: %v, want it held", key, err)
	}
}
