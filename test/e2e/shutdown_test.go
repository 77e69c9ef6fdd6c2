package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// exit is a way in which a Caddy ends while its requests hold keys. The section "Shutdown" of docs/operations.md says what happens to them.
type exit struct {
	name   string
	option string // a global option
	signal func(*testing.T, *caddyProcess)
	served bool // whether the requests that hold a key are served, and their keys freed; otherwise the keys are left to their ttl
	code   int  // the exit code; -1 after SIGKILL
}

var exits = []exit{
	{"SIGTERM", "", sends(syscall.SIGTERM), true, 0},
	{"SIGTERM within the grace period", "grace_period 1m", sends(syscall.SIGTERM), true, 0},
	{"SIGINT", "", sends(syscall.SIGINT), true, 0},
	{"caddy stop", "", stop, true, 0},
	{"SIGTERM and a grace period that ends", "grace_period 1s", sends(syscall.SIGTERM), false, 0},
	{"a second SIGINT", "", func(t *testing.T, c *caddyProcess) {
		sends(syscall.SIGINT)(t, c)
		requireLogLine(t, c, "eternal grace period")
		sends(syscall.SIGINT)(t, c)
	}, false, 2},
	{"SIGQUIT", "", sends(syscall.SIGQUIT), false, 2},
	{"SIGKILL", "", sends(syscall.SIGKILL), false, -1},
}

func sends(s syscall.Signal) func(*testing.T, *caddyProcess) {
	return func(t *testing.T, c *caddyProcess) {
		t.Helper()
		if err := c.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
}

// stop runs "caddy stop", which lasts until Caddy has ended.
func stop(t *testing.T, c *caddyProcess) {
	t.Helper()
	cmd := caddyCommand(t, "stop", "--address", strings.TrimPrefix(c.admin, "http://"))
	ended, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		within(t, ended, "the end of caddy stop")
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("caddy stop has ended with exit code %d", code)
		}
	})
}

const (
	holders = 50
	never   = 5 * time.Minute // a ttl: a key that becomes free within a test was released
)

// TestExit ends a Caddy in all ways while 50 of its requests hold keys and others wait. Another Caddy waits for the same keys all the
// time: it gets none before the request that holds it has been served or, if it is cut off, before its lease has ended.
func TestExit(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	option := mastersOption(servers, "timeout "+calm.String(), "max_ttl "+never.String())
	backends, releases := make([]*backend, len(exits)), make([]func(), len(exits))
	site := ""
	rule := func(n int) string {
		ttl := never
		if !exits[n].served {
			ttl = 2 * calm
		}
		return fmt.Sprintf("handle /%d/* {\nredlock %s {\nwait 2m\nttl %v\n}\n%s\n}\n", n, exitKey(n, "{path.1}"), ttl, backends[n].proxy())
	}
	for n := range exits {
		backends[n], releases[n] = newHeldBackend(t)
		site += rule(n)
	}
	other := runCaddy(t, caddyfile(option, site))
	t.Run("by", func(t *testing.T) {
		for n, by := range exits {
			t.Run(by.name, func(t *testing.T) {
				t.Parallel()
				by.test(t, n, servers, backends[n], releases[n], other, runCaddy(t, caddyfile(by.option+"\n"+option, rule(n))))
			})
		}
	})
	redistest.RequireNoKeys(t, servers)
}

// When clients have left, Caddy serves their requests to the end before it exits, except for those of a rule with on_client_abort cancel:
// their keys were freed when the clients left.
func TestExitAfterClientsLeft(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String(), "max_ttl "+never.String()), `
		redlock /run/* {path.0}:{path.1} {
			ttl `+never.String()+`
		}
		redlock /cancel/* {path.0}:{path.1} {
			ttl `+never.String()+`
			on_client_abort cancel
		}
		`+b.proxy()))
	ctx, leave := context.WithCancel(t.Context())
	var left sync.WaitGroup
	for i := range holders {
		for _, rule := range []string{"run", "cancel"} {
			left.Go(func() {
				if _, err := client.Do(request(fmt.Sprintf("%s/%s/%d", c.url, rule, i)).WithContext(ctx)); err == nil { //nolint:bodyclose // there is none
					t.Error("a response to a client that has left")
				}
			})
		}
	}
	eventually(t, "the requests are in the backend", func() bool { return b.inside() == 2*holders })
	leave()
	left.Wait()
	requireLocks(t, servers) // of the rule that runs on
	sends(syscall.SIGTERM)(t, c)
	requireLogLine(t, c, "eternal grace period")
	requireLocks(t, servers)
	release()
	within(t, c.exited, "the end of Caddy")
	redistest.RequireNoKeys(t, servers)
}

// A key that hold_after_abort keeps is left to its ttl when Caddy exits, because the upstream may still be working.
func TestExitDuringHoldAfterAbort(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	b, _ := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String(), "max_ttl "+never.String()), `
		redlock {path.1} {
			ttl `+never.String()+`
			hold_after_abort `+never.String()+`
		}
		`+proxyTo(b.Listener.Addr(), "response_header_timeout 100ms")))
	requireStatus(t, post(t, c.url+"/orders/1"), http.StatusGatewayTimeout)
	sends(syscall.SIGTERM)(t, c)
	within(t, c.exited, "the end of Caddy")
	for _, s := range servers {
		if keys := s.Keys(); len(keys) != 1 {
			t.Errorf("keys on %s: %q, want that of the request", s.Addr(), keys)
		}
	}
}

// Masters that hang don't keep Caddy from exiting, and requests are served. The keys on a hung master are left to its ttl, unless it reads the
// releases when it goes on.
func TestExitWithHungMasters(t *testing.T) {
	needTime(t)
	t.Parallel()
	for _, hung := range []int{1, 3} {
		t.Run(fmt.Sprint(hung, " of 3"), func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			b, release := newHeldBackend(t)
			c := runCaddy(t, caddyfile(mastersOption(servers, "timeout 500ms", "max_ttl "+never.String()),
				"redlock /orders/*/pay order:{path.1} {\nttl "+never.String()+"\n}\n"+b.proxy()))
			wait := holdLocks(t, c, b, servers)
			for _, s := range servers[:hung] {
				s.Pause()
			}
			sends(syscall.SIGTERM)(t, c)
			requireLogLine(t, c, "eternal grace period")
			release()
			served := make(chan []received, 1)
			go func() { served <- wait() }()
			for i, a := range within(t, served, "the responses") { // the releases are not waited for longer than a few timeouts
				if a.status != http.StatusOK {
					t.Errorf("request %d: status %d, want 200; body %q", i, a.status, a.body)
				}
			}
			within(t, c.exited, "the end of Caddy")
			redistest.RequireNoKeys(t, servers[hung:])
		})
	}
}

func exitKey(n int, key string) string { return fmt.Sprintf("exit%d:%s", n, key) }

func (by exit) test(t *testing.T, n int, servers []*redistest.Server, b *backend, release func(), other, c *caddyProcess) {
	urls := func(c *caddyProcess) (urls []string) {
		for i := range holders {
			urls = append(urls, fmt.Sprintf("%s/%d/%d", c.url, n, i))
		}
		return urls
	}
	held := tryAll(t, requests(urls(c))...)
	eventually(t, "the requests are in the backend", func() bool { return b.inside() == holders })
	first := urls(c)[0]
	waiting := tryAll(t, withBody(first, "body"), request(first), request(first))
	others := postAll(t, urls(other)...)
	eventually(t, "the other Caddy waits for all keys", func() bool {
		for i := range holders {
			tickets := int64(0)
			for _, s := range servers {
				tickets += s.Client().ZCard(t.Context(), "redlock:{"+exitKey(n, fmt.Sprint(i))+"}:queue").Val()
			}
			if tickets < 2 {
				return false
			}
		}
		return true
	})
	free := heldUntil(t, n, servers)

	by.signal(t, c)
	if by.served {
		for _, a := range waiting() {
			requireStatus(t, a, http.StatusServiceUnavailable)
			if outcome := a.header.Get("Redlock-Outcome"); outcome != "stopping" {
				t.Errorf("a request that waited is refused for %q", outcome)
			}
		}
		requireLogLine(t, c, "servers shutting down")
		if in := b.inside(); in != holders {
			t.Errorf("%d requests run, want %d", in, holders)
		}
		release()
		for i, a := range held() {
			if a.status != http.StatusOK {
				t.Errorf("request %d: status %d, want 200; body %q", i, a.status, a.body)
			}
		}
		within(t, c.exited, "the end of Caddy")
	} else {
		within(t, c.exited, "the end of Caddy")
		release() // the upstream works on meanwhile
		held()
		waiting()
	}
	if code := c.cmd.ProcessState.ExitCode(); code != by.code {
		t.Errorf("Caddy has ended with exit code %d, want %d", code, by.code)
	}
	for i, a := range others() {
		if a.status != http.StatusOK {
			t.Errorf("the other Caddy, key %d: status %d, want 200; body %q", i, a.status, a.body)
		}
		if early := free[i].Sub(a.at); !by.served && early > 0 {
			t.Errorf("the other Caddy got key %d %v before the lease of the first had ended", i, early)
		}
	}
	requireNoOverlap(t, b)
}

// heldUntil returns until when nobody else can get the keys unless they are released: two of three masters have them until then.
func heldUntil(t *testing.T, n int, servers []*redistest.Server) (until [holders]time.Time) {
	t.Helper()
	for i := range until {
		var ends []time.Time
		for _, s := range servers {
			now := time.Now().Add(-2 * time.Millisecond) // Redis rounds, and its clock is not ours
			left, err := s.Client().PTTL(t.Context(), "redlock:{"+exitKey(n, fmt.Sprint(i))+"}").Result()
			if err != nil || left <= 0 {
				t.Fatalf("key %d has a TTL of %v on %s: %v", i, left, s.Addr(), err)
			}
			ends = append(ends, now.Add(left))
		}
		slices.SortFunc(ends, time.Time.Compare)
		until[i] = ends[1]
	}
	return until
}

// tryAll is sendAll for requests that may get no response, because their Caddy ends. Their status is 0 then.
func tryAll(t *testing.T, requests ...*http.Request) (wait func() []received) {
	t.Helper()
	responses := make([]chan received, len(requests))
	for i, r := range requests {
		responses[i] = make(chan received, 1)
		go func() {
			response, err := client.Do(r.WithContext(t.Context()))
			if err != nil {
				responses[i] <- received{}
				return
			}
			defer response.Body.Close()
			responses[i] <- received{status: response.StatusCode, header: response.Header}
		}()
	}
	return func() (all []received) {
		for i := range responses {
			all = append(all, within(t, responses[i], "a response, or the end of the connection"))
		}
		return all
	}
}
