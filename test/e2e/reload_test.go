package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// holdLocks sends requests for that many keys, and waits until all of them are in the backend and all masters have their keys.
func holdLocks(t *testing.T, c *caddyProcess, b *backend, servers []*redistest.Server) (wait func() []received) {
	t.Helper()
	urls := make([]string, holders)
	for i := range urls {
		urls[i] = fmt.Sprintf("%s/orders/%d/pay", c.url, i)
	}
	wait = b.hold(t, urls...)
	requireLocks(t, servers)
	return wait
}

// requireLocks waits until all masters have the keys of holdLocks.
func requireLocks(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		eventually(t, fmt.Sprintf("%d locks on %s", holders, s.Addr()), func() bool { return len(s.Keys()) == holders })
	}
}

// requireServed waits for the responses, and requires that all are 200 and no lock is left.
func requireServed(t *testing.T, wait func() []received, servers []*redistest.Server) {
	t.Helper()
	for i, a := range wait() {
		if a.status != http.StatusOK {
			t.Errorf("request %d: status %d, want 200; body %q", i, a.status, a.body)
		}
	}
	redistest.RequireNoKeys(t, servers)
}

func requireConnections(t *testing.T, servers []*redistest.Server, n int) {
	t.Helper()
	for _, s := range servers {
		eventually(t, fmt.Sprintf("%d connections to %s", n, s.Addr()), func() bool { return s.Connections() == n })
	}
}

// load asks Caddy to load another configuration, and waits until the former servers don't listen any more: those of two configurations
// listen beside each other (SO_REUSEPORT), and what a socket hasn't accepted yet is reset when it is closed.
func (c *caddyProcess) load(t *testing.T, config string, header ...string) received {
	t.Helper()
	defer client.CloseIdleConnections() // those to the former server, which closes them, too: a POST is not sent again
	r := request(c.admin+"/load", append(header, "Content-Type", "text/caddyfile")...)
	r.Body = io.NopCloser(strings.NewReader(config))
	a := send(t, r)
	c.awaitSuccession(t)
	return a
}

func (c *caddyProcess) awaitSuccession(t *testing.T) {
	t.Helper()
	for _, server := range []string{c.url, c.admin} {
		eventually(t, "the former server doesn't listen", func() bool { return listening(t, server) <= 1 })
	}
}

// listening returns how many sockets listen on the port of a URL.
func listening(t *testing.T, server string) (n int) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		sockets, err := os.Open(table)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(sockets)
		for lines.Scan(); lines.Scan(); { // behind the headings
			fields := strings.Fields(lines.Text())
			if fields[3] != "0A" {
				break // those that listen come first, before thousands of connections
			}
			if strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				n++
			}
		}
		if err := errors.Join(lines.Err(), sockets.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// Requests that run during a reload keep their locks, and the connections to the masters, until they end.
func TestReloadUnderLocks(t *testing.T) {
	t.Parallel()
	const before = "timeout 2s"
	for _, test := range []struct {
		name          string
		after         string // the settings; empty: without redlock
		during, final int    // connections to each master
	}{
		{"other settings", "timeout 3s", 2, 1},
		{"same settings", before, 1, 1},
		{"without redlock", "", 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers := redistest.Start(t, 3)
			b, release := newHeldBackend(t)
			rule := "redlock /orders/*/pay order:{path.1}\n"
			c := runCaddy(t, caddyfile(mastersOption(servers, before), rule+b.proxy()))
			requireConnections(t, servers, 1)
			wait := holdLocks(t, c, b, servers)

			config := caddyfile("", "respond reloaded")
			if test.after != "" {
				config = caddyfile(mastersOption(servers, test.after), rule+"header X-Reloaded yes\n"+b.proxy())
			}
			if a := c.load(t, config); a.status != http.StatusOK {
				t.Fatalf("POST /load: status %d: %s", a.status, a.body)
			}
			requireConnections(t, servers, test.during)
			requireLocks(t, servers)
			a := post(t, c.url+"/orders/0/pay")
			if test.after != "" && (a.status != http.StatusLocked || a.header.Get("X-Reloaded") == "") {
				t.Errorf("the new configuration doesn't respect the lock of a request of the old one: status %d", a.status)
			}
			if test.after == "" && a.body != "reloaded" {
				t.Errorf("without redlock: status %d, body %q", a.status, a.body)
			}

			release()
			requireServed(t, wait, servers)
			requireConnections(t, servers, test.final)
			if test.after != "" {
				requireStatus(t, post(t, c.url+"/orders/0/pay"), http.StatusOK)
			}
		})
	}
}

// A reload that fails leaves the running configuration and its masters as they were.
func TestFailedReload(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	b := newBackend(t, func() {})
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout 2s"), payRule+b.proxy()))
	requireConnections(t, servers, 1)
	// The app is provisioned, with a locker of its own, before the handler finds its ttl too long.
	bad := caddyfile(mastersOption(servers, "timeout 3s"), "redlock order:{path.1} {\nttl 31s\n}\n"+b.proxy())
	a := c.load(t, bad)
	if a.status != http.StatusBadRequest || !strings.Contains(a.body, "max_ttl") {
		t.Errorf("POST /load: status %d, body %q; want 400 that names max_ttl", a.status, a.body)
	}
	requireStatus(t, post(t, c.url+"/orders/1/pay"), http.StatusOK)
	requireConnections(t, servers, 1)
}

// TestReloadDuringHoldAfterAbort: a key that hold_after_abort keeps stays locked, whatever is loaded meanwhile: until it is free, it is a
// user of the masters of the configuration that has locked it.
func TestReloadDuringHoldAfterAbort(t *testing.T) {
	needTime(t)
	t.Parallel()
	for name, loaded := range map[string]func(servers []*redistest.Server, site string) string{
		"other settings": func(servers []*redistest.Server, site string) string {
			return caddyfile(mastersOption(servers, "timeout 3s"), site)
		},
		"without the handler": func(servers []*redistest.Server, _ string) string {
			return caddyfile(mastersOption(servers, "timeout 3s"), "respond reloaded")
		},
		"without redlock": func([]*redistest.Server, string) string { return caddyfile("", "respond reloaded") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			b, _ := newHeldBackend(t)
			site := "redlock order:{path.1} {\nhold_after_abort 1h\nmax_hold 1h\n}\n" + proxyTo(b.Listener.Addr(), "response_header_timeout 100ms")
			load := func(c *caddyProcess, config string) {
				t.Helper()
				if a := c.load(t, config); a.status != http.StatusOK {
					t.Fatalf("POST /load: status %d: %s", a.status, a.body)
				}
			}
			c := runCaddy(t, caddyfile(mastersOption(servers, "timeout 2s"), site))
			requireStatus(t, post(t, c.url+"/orders/1"), http.StatusGatewayTimeout)
			load(c, loaded(servers, site))
			load(c, caddyfile(mastersOption(servers, "timeout 4s"), site))
			requireStatus(t, post(t, c.url+"/orders/1"), http.StatusLocked)

			operator, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(calm))
			if err != nil {
				t.Fatal(err)
			}
			released := false
			eventually(t, "the key is released", func() bool { // on a busy machine the replies may be late, and the masters forget the fence for a while
				seen, err := inspect.Key(t.Context(), operator, "order:1")
				if released && err == nil && !seen.Held {
					return true
				}
				if err == nil {
					released = true
					err = inspect.Force(t.Context(), operator, "order:1", 0, seen.Fence)
				}
				if err != nil && !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, inspect.ErrFenceChanged) {
					t.Fatal(err)
				}
				return err == nil
			})
			if err := operator.Close(); err != nil {
				t.Fatal(err)
			}
			requireConnections(t, servers, 1) // the former locker is closed
		})
	}
}

// TestReloadToOtherMasters: while a request holds a key, nothing is loaded that would give the key to another one, as its masters don't know
// of the first; and what runs goes on.
func TestReloadToOtherMasters(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 2)
	first, second := mastersOption(servers[:1], "timeout 2s"), mastersOption(servers[1:], "timeout 2s")
	for name, option := range map[string][2]string{
		"another prefix":        {first, mastersOption(servers[:1], "timeout 2s", "key_prefix other")},
		"other masters":         {first, second},
		"memory to Redis":       {"", second},
		"memory, other timeout": {"", "redlock {\ntimeout 60ms\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			b, release := newHeldBackend(t)
			defer release() // before Caddy is stopped, which waits for the requests
			site := "redlock {path.1}\n" + b.proxy()
			c := runCaddy(t, caddyfile(option[0], site))
			held := b.hold(t, c.url+"/orders/1?key=1")
			if a := c.load(t, caddyfile(option[1], site)); a.status != http.StatusBadRequest || !strings.Contains(a.body, "when nothing is locked") {
				t.Errorf("beside a lock: status %d, body %q", a.status, a.body)
			}
			requireStatus(t, post(t, c.url+"/orders/1?key=1"), http.StatusLocked)
			release()
			requireStatus(t, held()[0], http.StatusOK)
			if a := c.load(t, caddyfile(option[1], site)); a.status != http.StatusOK {
				t.Errorf("without a lock: status %d, body %q", a.status, a.body)
			}
			requireStatus(t, post(t, c.url+"/orders/1?key=1"), http.StatusOK)
		})
	}
}
