package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const waitRule = `
	redlock /locked/* {path.1} {
		wait 5m
	}
`

// TestWaitersDrain: 200 requests for one key that come to two Caddys at once are served one after the other, and none of them asks the
// masters again and again. It logs how long that takes, beside the same requests sent one after the other without a lock.
func TestWaitersDrain(t *testing.T) {
	needTime(t)
	t.Parallel()
	const requests, work = 200, 5 * time.Millisecond
	servers := redistest.Start(t, 3)
	b := newBackend(t, func() { time.Sleep(work) })
	config := caddyfile(mastersOption(servers, "timeout "+calm.String()), waitRule+b.proxy())
	urls := []string{runCaddy(t, config).url, runCaddy(t, config).url}
	paths := func(path string) (targets []string) {
		for i := range requests {
			targets = append(targets, urls[i%2]+path)
		}
		return targets
	}
	drain := func(path string) time.Duration {
		start := time.Now()
		for _, a := range postAll(t, paths(path)...)() {
			requireStatus(t, a, http.StatusOK)
		}
		return time.Since(start)
	}
	drain("/locked/before") // makes the connections
	before := servers[0].Calls("evalsha")
	locked := drain("/locked/order")
	asked := servers[0].Calls("evalsha") - before

	start := time.Now()
	for _, url := range paths("/free/order") {
		requireStatus(t, post(t, url), http.StatusOK)
	}
	single := time.Since(start)
	requireNoOverlap(t, b)
	redistest.RequireNoKeys(t, servers)
	t.Logf("%d requests of %v: %v in line for the lock, %v sent one after the other without it: %.2f times as long, and %.2f times the work alone; %.2f scripts each",
		requests, work, locked, single, locked.Seconds()/single.Seconds(), locked.Seconds()/(requests*work).Seconds(), float64(asked)/requests)
	if asked > 5*requests { // 1 for a turn that stays in its process, 3.5 for one that goes to the other
		t.Errorf("%d requests ran %d scripts on a master", requests, asked)
	}
}

// TestTooManyRequestsWait: requests beyond max_waiters are refused at once.
func TestTooManyRequestsWait(t *testing.T) {
	needTime(t)
	t.Parallel()
	const requests, waiters = 1000, 100
	servers := redistest.Start(t, 3)
	b, release := newHeldBackend(t)
	c := runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), `
		redlock /locked/* {path.1} {
			wait 10m
			max_waiters 100
		}
		`+b.proxy()))
	first := b.hold(t, c.url+"/locked/order")
	responses := make(chan received, requests)
	for range requests {
		go func() { responses <- post(t, c.url+"/locked/order") }()
	}
	for range requests - waiters { // before any request is served
		a := <-responses
		requireStatus(t, a, http.StatusServiceUnavailable)
	}
	release()
	for range waiters {
		requireStatus(t, <-responses, http.StatusOK)
	}
	for _, a := range first() {
		requireStatus(t, a, http.StatusOK)
	}
	requireNoOverlap(t, b)
	redistest.RequireNoKeys(t, servers)
}

// TestKilledProcesses: if the process that is first in line is killed, the next one is served at once; if the holder is killed, as
// soon as its lease has expired.
func TestKilledProcesses(t *testing.T) {
	needTime(t)
	t.Parallel()
	const ttl = 8 * time.Second
	servers := redistest.Start(t, 3)
	then := newBackend(t, func() {})
	config := func(b *backend) string {
		return caddyfile(mastersOption(servers, "timeout "+(ttl/2).String()), `
			redlock /locked/* {path.1} {
				wait 5m
				ttl `+ttl.String()+`
			}
			`+b.proxy())
	}
	inLine := func(t *testing.T, n int64) {
		t.Helper()
		eventually(t, "the waiting processes are in all queues", func() bool {
			for _, s := range servers {
				if s.Client().ZCard(t.Context(), "redlock:{order}:queue").Val() != n {
					return false
				}
			}
			return true
		})
	}
	lives := runCaddy(t, config(then))
	for name, killsHolder := range map[string]bool{"first in line": false, "holder": true} {
		t.Run(name, func(t *testing.T) {
			first, release := newHeldBackend(t)
			holder, head := runCaddy(t, config(first)), runCaddy(t, config(then))
			abandoned := func(c *caddyProcess) { // its response never comes
				go func() {
					response, err := client.Do(request(c.url + "/locked/order"))
					if err == nil {
						_ = response.Body.Close()
					}
				}()
			}
			abandoned(holder)
			eventually(t, "the lock is held", func() bool { return first.inside() == 1 })
			abandoned(head)
			inLine(t, 1)
			wait := postAll(t, lives.url+"/locked/order")
			inLine(t, 2)
			_ = head.cmd.Process.Kill()
			<-head.exited
			if killsHolder {
				_ = holder.cmd.Process.Kill()
				<-holder.exited
			}
			release()
			requireStatus(t, wait()[0], http.StatusOK)
			redistest.RequireNoKeys(t, servers)
		})
	}
}
