package plugintest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// many has several clients pay while something happens, and requires that all are served.
func many(t *testing.T, h http.Handler, meanwhile func()) {
	var group sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					wantStatus(t, pay(h, "42"), http.StatusOK)
				}
			}
		})
	}
	meanwhile()
	time.Sleep(200 * time.Millisecond)
	close(stop)
	group.Wait()
}

func testHung(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	w := newWitness(t)
	h := handler(t, load(t), with(servers, "wait", "1m"), w.handler("plugin"))
	served(t, h)
	many(t, h, servers[1].Pause)
	many(t, h, servers[1].Resume)
	redistest.RequireNoKeys(t, servers)
	eventually(t, "the master votes again", func() bool {
		before := calls(t, servers[1], "evalsha")
		pay(h, "43")
		return calls(t, servers[1], "evalsha") > before
	})
}

// testHungForLong hangs a majority for longer than the TTL. What then grants a lock whose request was refused long ago must release it:
// the lease has only begun.
func testHungForLong(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	h := handler(t, load(t), with(servers, "ttl", "2s"), nothing)
	served(t, h)
	for _, server := range servers[:2] {
		held := func() int { return calls(t, server, "rpush") - calls(t, server, "del") }
		granted, before := calls(t, server, "rpush"), held()
		eventually(t, "a lock is granted late", func() bool { // not if another command was under way when the masters were hung
			servers[0].Pause()
			servers[1].Pause()
			wantStatus(t, pay(h, "42"), http.StatusConflict)
			time.Sleep(3 * time.Second)
			servers[0].Resume()
			servers[1].Resume()
			time.Sleep(100 * time.Millisecond)
			return calls(t, server, "rpush") > granted
		})
		eventually(t, "it is released", func() bool { return held() == before })
	}
}

func testKilled(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	w := newWitness(t)
	h := handler(t, load(t), with(servers, "wait", "1m"), w.handler("plugin"))
	served(t, h)
	many(t, h, servers[1].Kill)
	many(t, h, servers[1].Restart)
	eventually(t, "the master votes again", func() bool {
		pay(h, "43")
		return calls(t, servers[1], "evalsha") > 0
	})
	redistest.RequireNoKeys(t, servers)

	servers[0].Kill()
	servers[2].Kill()
	eventually(t, "the answer is 409 for lack of a quorum", func() bool { return pay(h, "44").Code == http.StatusConflict })
	servers[0].Restart()
	eventually(t, "a majority serves again", func() bool { return pay(h, "44").Code == http.StatusOK })
}

// testOtherNames restarts masters for which a Go process has other names than the plugin: neither takes the other for one with other
// masters.
func testOtherNames(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	var names []string
	for _, s := range servers {
		names = append(names, strings.Replace(s.URL(), "127.0.0.1", "localhost", 1))
	}
	locker, err := redlock.Open(names, redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	h := handler(t, load(t), with(servers), nothing)
	both := func() {
		t.Helper()
		wantStatus(t, pay(h, "42"), http.StatusOK)
		lock, err := locker.Lock(context.Background(), "order:43")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) { // which may happen on a busy machine
			t.Error(err)
		}
	}
	served(t, h)
	for _, s := range servers[:2] {
		both()
		s.Kill()
		s.Restart()
		eventually(t, "both have registered the new run", func() bool {
			sets, err := s.Client().ZRange(context.Background(), "redlock:sets:{sets}", 0, -1).Result()
			return err == nil && len(slices.DeleteFunc(sets, func(set string) bool { return strings.Count(set, `"up":true`) < len(servers) })) == 2
		})
		both()
	}
}

// testNoWitness restarts two masters while the third is away. What the third knew when it left must not make the plugin take its own
// former set for that of another process.
func testNoWitness(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	h := handler(t, load(t), with(servers), nothing)
	served(t, h)
	eventually(t, "the third knows the set", func() bool {
		sets, _ := servers[2].Client().ZRange(context.Background(), "redlock:sets:{sets}", 0, -1).Result()
		return slices.ContainsFunc(sets, func(set string) bool { return strings.Count(set, `"up":true`) == len(servers) })
	})
	servers[1].Kill()
	servers[1].Restart()
	votes := func() bool {
		pay(h, "43")
		return calls(t, servers[1], "evalsha") > 0
	}
	eventually(t, "the master votes again", votes)
	servers[2].Kill()
	servers[0].Kill()
	servers[0].Restart()
	serves := func() bool { return pay(h, "44").Code == http.StatusOK }
	for end := time.Now().Add(13 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		eventually(t, "a majority serves again", serves) // a doubt is believed after 10 s, and lasts
	}
	eventually(t, "a majority still serves", serves)
}

// testLost hangs the masters while a lock is held: its context ends within the TTL.
func testLost(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	var cause error
	hold := func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/orders/warm") {
			return
		}
		servers[0].Pause()
		servers[1].Pause()
		select {
		case <-r.Context().Done():
			cause = context.Cause(r.Context())
		case <-time.After(bound):
		}
	}
	h := handler(t, load(t), with(servers, "ttl", "1s"), hold)
	served(t, h)
	pay(h, "42")
	if cause == nil || !strings.Contains(cause.Error(), "lease lost") {
		t.Errorf("the context ended with %v, want a lost lease", cause)
	}
	servers[0].Resume()
	servers[1].Resume()
	eventually(t, "the key is free again", func() bool { return pay(h, "warm42").Code == http.StatusOK })
	redistest.RequireNoKeys(t, servers)
}

// testForced has another process find out who holds a key, and release it by force: the lock is lost, and the key isn't taken back.
func testForced(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	locker, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	host, _ := os.Hostname()
	var cause error
	h := handler(t, load(t), with(servers, "ttl", "2s"), func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/orders/warm") {
			return
		}
		seen, err := locker.Inspect(context.Background(), "order:42")
		if want := host + "/" + strconv.Itoa(os.Getpid()); err != nil || !seen.Held || seen.Holder != want {
			t.Errorf("a plugin's lock: %+v, %v, want it held by %s", seen, err, want)
			return
		}
		if err := locker.ForceUnlock(context.Background(), "order:42", seen.Fence); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(bound); cause == nil && time.Now().Before(end); cause = context.Cause(r.Context()) {
			if seen, err := locker.Inspect(context.Background(), "order:42"); err != nil || seen.Held {
				t.Errorf("released, and held again: %+v, %v", seen, err)
				return
			}
		}
	})
	served(t, h)
	pay(h, "42")
	if cause == nil || !strings.Contains(cause.Error(), "lease lost") {
		t.Errorf("the context ended with %v, want a lost lease", cause)
	}
	redistest.RequireNoKeys(t, servers)
}

// testRenewed holds a lock for longer than its TTL. Masters that lose the key meanwhile get it back.
func testRenewed(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	locker, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	h := handler(t, load(t), with(servers, "ttl", "1s"), func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/orders/warm") {
			return
		}
		for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if _, err := locker.TryLock(context.Background(), "order:42"); err == nil {
				t.Error("a Go process has the lock as well")
			}
		}
		for _, s := range servers[1:] {
			if err := s.Client().Del(context.Background(), "redlock:{order:42}").Err(); err != nil {
				t.Error(err)
			}
			eventually(t, "a master that lost the key has it again", func() bool {
				return s.Client().Exists(context.Background(), "redlock:{order:42}").Val() == 1
			})
		}
		if r.Context().Err() != nil {
			t.Errorf("lost: %v", context.Cause(r.Context()))
		}
	})
	served(t, h)
	wantStatus(t, pay(h, "42"), http.StatusOK)
	eventually(t, "a Go process gets the lock after it", func() bool {
		_, err := locker.TryLock(context.Background(), "order:42")
		return err == nil
	})
}

// testGuard restarts a majority of the masters: they have no vote for the guard, counted from when the plugin sees it.
func testGuard(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 3)
	h := handler(t, load(t), with(servers, "maxTTL", "1s", "ttl", "1s", "restartGuard", ""), nothing)
	served(t, h)
	for _, s := range servers[:2] {
		s.Kill()
	}
	restarted := time.Now()
	for _, s := range servers[:2] {
		s.Restart()
	}
	eventually(t, "the answer is 409 with Retry-After during the guard", func() bool {
		w := pay(h, "42")
		return w.Code == http.StatusConflict && w.Header().Get("Retry-After") != ""
	})
	eventually(t, "the guard is over", func() bool { return pay(h, "42").Code == http.StatusOK })
	if waited := time.Since(restarted); waited < 2*time.Second {
		t.Errorf("restarted servers vote after %v, want at least the guard of 2s", waited)
	}
}

// testSameServer names one server twice: it has one vote.
func testSameServer(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 2)
	settings := with(servers)
	settings["masters"] = []string{servers[0].URL(), strings.Replace(servers[0].URL(), "127.0.0.1", "localhost", 1), servers[1].URL()}
	h := handler(t, load(t), settings, nothing)
	served(t, h)
	servers[1].Pause()
	eventually(t, "one server is no majority of three masters", func() bool { return pay(h, "42").Code == http.StatusConflict })
	wantStatus(t, pay(h, "42"), http.StatusConflict)
	servers[1].Resume()
}

// testApart starts a plugin whose masters need not share one with every majority of those of an earlier process.
func testApart(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 4)
	locker, err := redlock.Open(redistest.URLs(servers[:3]), redlock.WithRestartGuard(0), redlock.WithMaxTTL(time.Second), redlock.WithTTL(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	eventually(t, "the Locker takes locks", func() bool {
		lock, err := locker.TryLock(context.Background(), "x")
		return err == nil && lock.Unlock() == nil
	})
	time.Sleep(11 * time.Second) // of two processes that start within 10 s of each other, either may be taken for the first
	h := handler(t, load(t), with([]*redistest.Server{servers[2], servers[3]}[:1], "maxTTL", "1s", "ttl", "1s"), nothing)
	eventually(t, "the plugin is refused", func() bool { return pay(h, "42").Code == http.StatusConflict })
	for range 20 {
		wantStatus(t, pay(h, "42"), http.StatusConflict)
	}
	eventually(t, "the first process goes on", func() bool {
		_, err := locker.TryLock(context.Background(), "y")
		return err == nil
	})
}
