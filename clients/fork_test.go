package clients

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// forks are the languages whose programs fork.
var forks = []string{"python", "php", "ruby"}

// TestClientForks: a child of a process that holds a lock has no lock, and leaves its parent's alone, however it leaves the block.
func TestClientForks(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range forks {
		if !has(t, language) {
			continue
		}
		for _, how := range []string{"exit", "return", "raise"} {
			t.Run(language+"/"+how, func(t *testing.T) {
				t.Parallel()
				key := language + how
				w := a.start(t, language, "FORK="+how, "hold", key)
				w.expect(t, "held ")
				w.expect(t, "child False")
				if how == "return" { // which is told that it had no lock
					w.expect(t, "lost 0 the lock belongs to the process that took it")
				}
				w.expect(t, "forked")
				if _, err := a.locker.TryLock(t.Context(), key); !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("another one: %v, want %v", err, redlock.ErrHeld)
				}
				w.end(t)
				w.expect(t, "done")
				_ = a.lock(t, key).Unlock()
			})
		}
	}
}

// TestClientChildOutlives: the lock of a process that is killed is free while its child lives.
func TestClientChildOutlives(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range []string{"python", "ruby"} { // PHP can't close a child's copy of the connection
		if !has(t, language) {
			continue
		}
		w := a.start(t, language, "FORK=outlive", "hold", language)
		defer w.end(t)
		w.expect(t, "held ")
		w.expect(t, "child False")
		_ = w.Cmd.Process.Kill()
		_ = a.lock(t, language).Unlock()
	}
}

// TestClientEndedByOther: a client whose lock ends in order, and not by its own wish, has lost it.
func TestClientEndedByOther(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range some(t) {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			path, end := between(t, a.socket)
			w := a.start(t, language, "ADDRESS="+path, "hold", language)
			w.expect(t, "held ")
			end()
			if why := w.expect(t, "lost "); strings.Contains(why, "in time") {
				t.Errorf("lost %s, want it at once, and not as the lease is over", why)
			}
		})
	}
}

// between returns a socket before an agent's, for one connection, and a function that ends what is sent on it.
func between(t *testing.T, socket string) (path string, end func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dialed := make(chan net.Conn, 1)
	var running sync.WaitGroup
	running.Go(func() {
		down, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = down.Close() }()
		up, err := net.Dial("unix", socket) // only now: the agent waits for no request for long
		if err != nil {
			return
		}
		dialed <- up
		running.Go(func() { _, _ = io.Copy(up, down); _ = up.Close() })
		_, _ = io.Copy(down, up)
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return path, func() { _, _ = io.WriteString(<-dialed, "0\r\n\r\n") }
}

// TestClientAfter: who keeps a lock beyond its end has none.
func TestClientAfter(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range some(t) {
		if folder(language) == "shell" { // whose lock is no object
			continue
		}
		w := a.start(t, language, "", "after", language)
		w.expect(t, "held ")
		w.end(t)
		if why := w.expect(t, "lost "); !strings.HasSuffix(why, " it was released") {
			t.Errorf("%s: lost %s, want it was released", language, why)
		}
	}
}

// TestClientAgentDies: the error of a client whose agent dies while it waits is one of its own.
func TestClientAgentDies(t *testing.T) {
	t.Parallel()
	for _, language := range some(t) {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t)
			busy, err := a.locker.Lock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = busy.Unlock() }()
			w := a.start(t, language, "PATIENCE=1", "hold", "k")
			for a.waiting(t) == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			_ = a.process.Kill()
			w.expectError(t)
		})
	}
}

// waiting returns how many calls of the agent at the Unix socket wait for a lock.
func (a *realAgent) waiting(t *testing.T) (n int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.socket)
	}}}
	response, err := client.Get("http://redlock/console/masters")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var status struct{ Lockers []struct{ Waiting int } }
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		t.Fatal(err)
	}
	for _, l := range status.Lockers {
		n += l.Waiting
	}
	return n
}
