package plugintest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// witness checks that each key has one holder at a time, and that fences grow.
type witness struct {
	t     testing.TB
	mu    sync.Mutex
	in    map[string]int
	fence map[string]int64
}

func (w *witness) work(key string, fence int64) {
	w.mu.Lock()
	if w.in[key]++; w.in[key] > 1 {
		w.t.Errorf("%d hold %s at once", w.in[key], key)
	}
	if fence <= w.fence[key] {
		w.t.Errorf("the fence of %s goes from %d to %d", key, w.fence[key], fence)
	}
	w.fence[key] = fence
	w.mu.Unlock()
	time.Sleep(time.Millisecond)
	w.mu.Lock()
	w.in[key]--
	w.mu.Unlock()
}

func (w *witness) serve(_ http.ResponseWriter, r *http.Request) {
	fence, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
	if err != nil {
		w.t.Errorf("no fence: %v", err)
	}
	w.work(strings.Split(r.URL.Path, "/")[2], fence)
}

// testOneAtATime has a plugin over both kinds of sockets and a Locker beside the agent take 300 locks on 3 keys.
func testOneAtATime(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	b := &agentOf{t: t, servers: a.servers, locker: newLocker(t, a.servers), network: "tcp", token: "secret"}
	b.listen = fmt.Sprint("127.0.0.1:", redistest.FreePort(t))
	b.address = "http://" + b.listen
	b.start()
	locker := newLocker(t, a.servers)
	w := &witness{t: t, in: make(map[string]int), fence: make(map[string]int64)}
	through := func(h http.Handler) func(string) {
		return func(key string) { want(t, pay(h, key), http.StatusOK, "") }
	}
	ways := []func(key string){
		through(handler(t, p, a, w.serve, "wait", "2m")),
		through(handler(t, p, b, w.serve, "wait", "2m", "token", "secret")),
		func(key string) {
			err := locker.Do(context.Background(), "order:"+key, func(_ context.Context, lock *redlock.Lock) error {
				w.work(key, int64(lock.Fence()))
				return nil
			})
			if err != nil && !errors.Is(err, redlock.ErrNoQuorum) { // a release may not be confirmed on a busy machine
				t.Error(err)
			}
		},
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for n := range 25 {
				ways[i%len(ways)](fmt.Sprint(n % 3))
			}
		})
	}
	wg.Wait()
	eventually(t, "all keys are free", func() bool { return len(a.servers[0].Keys()) == 0 })
}

// testSlots has the plugin and a Locker beside the agent serve 60 requests, of which each has one of three slots to itself.
func testSlots(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	locker := newLocker(t, a.servers)
	var taken sync.Map
	work := func(slot string) {
		if _, twice := taken.LoadOrStore(slot, true); twice || slot != "0" && slot != "1" && slot != "2" {
			t.Errorf("slot %q, which another has: %t", slot, twice)
		}
		time.Sleep(time.Millisecond)
		taken.Delete(slot)
	}
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) { work(r.Header.Get("Redlock-Slot")) }, "wait", "2m", "concurrency", "3")
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			if i%2 == 0 {
				want(t, pay(h, "42", "Redlock-Slot", "7"), http.StatusOK, "")
				return
			}
			lock, err := locker.Lock(context.Background(), "order:42", redlock.WithConcurrency(3))
			if err != nil {
				t.Error(err)
				return
			}
			work(strconv.Itoa(lock.Slot()))
			_ = lock.Unlock() // may not be confirmed on a busy machine
		})
	}
	all.Wait()
}

// testPanic has a handler panic: its lock is free at once, and the panic goes on.
func testPanic(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	h := handler(t, p, a, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "wait", "1m")
	for range 3 {
		func() {
			defer func() {
				if got := recover(); got != http.ErrAbortHandler {
					t.Errorf("panic %v, want that of the handler", got)
				}
			}()
			pay(h, "42")
		}()
	}
	redistest.RequireNoKeys(t, a.servers)
}

// testLongHold holds a lock for three times its TTL, over both kinds of sockets. The TTL is the longest there is: a machine may stall.
func testLongHold(t *testing.T, p *Plugin) {
	if testing.Short() {
		t.Skip("takes 30 s")
	}
	var all sync.WaitGroup
	for _, network := range []string{"unix", "tcp"} {
		var lost error
		h := handler(t, p, newAgent(t, network, ""), func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				lost = context.Cause(r.Context())
			case <-time.After(3 * redlock.DefaultMaxTTL):
			}
		}, "ttl", redlock.DefaultMaxTTL.String())
		all.Go(func() {
			want(t, pay(h, "42"), http.StatusOK, "")
			if lost != nil {
				t.Errorf("%s: %v", network, lost)
			}
		})
	}
	all.Wait()
}
