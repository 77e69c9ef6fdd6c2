package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// behindForwarders gives servers, and addresses of them that can be cut and held up.
func behindForwarders(t *testing.T, n int) (urls []string, servers []*redistest.Server, ways []*redistest.Forwarder) {
	servers = redistest.Start(t, n)
	for _, s := range servers {
		way := redistest.NewForwarder(t, s)
		ways, urls = append(ways, way), append(urls, "redis://"+way.Addr())
	}
	return urls, servers, ways
}

// TestLateExtendIsUndone: extends that were under way when their connections broke arrive after Unlock,
// and take the free key anew. It is released once more, long before they would end by themselves.
func TestLateExtendIsUndone(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	urls, servers, ways := behindForwarders(t, 3)
	eventually(t, 6*bound, "the extends have arrived", func() bool { // a busy machine may have made them before, or release the key unseen
		lock := mustLock(t, newLocker(t, urls, redlock.WithTTL(ttl)), "key")
		time.Sleep(ttl/3 - ttl/15) // so short before the extends that nothing else waits on the connections until they are in doubt
		var deliver []func()
		for _, way := range ways[:2] {
			late := way.Hold()
			defer late()
			deliver = append(deliver, late)
		}
		time.Sleep(ttl/15 + ttl/30) // the extends are on their way
		for _, way := range ways[:2] {
			way.LoseClients()
		}
		if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) { // the connections have just gone
			t.Fatal(err)
		}
		eventually(t, bound, "the key is free", func() bool { return keysOn(servers) == 0 })
		for _, late := range deliver {
			late()
		}
		for range 100 {
			if keysOn(servers) == 2 {
				return true
			}
			time.Sleep(5 * time.Millisecond)
		}
		return false
	})
	eventually(t, ttl/2, "nobody's key is gone", func() bool { return keysOn(servers) == 0 })
}

func keysOn(servers []*redistest.Server) (n int) {
	for _, s := range servers {
		n += len(s.Keys())
	}
	return n
}

// TestOwedReleasesDontStarve: a release that a master missed is repeated, also while others fail all the time.
func TestOwedReleasesDontStarve(t *testing.T) {
	t.Parallel()
	urls, servers, ways := behindForwarders(t, 3)
	l := newLocker(t, urls)
	for _, s := range servers[:2] {
		if err := s.Client().Set(t.Context(), "redlock:{poison}", "of another program", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lock := mustLock(t, l, "key")
	stop := make(chan struct{})
	var poisoning sync.WaitGroup
	poisoning.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				if poison, err := l.TryLock(context.Background(), "poison"); err == nil {
					t.Error("locked a string")
					_ = poison.Unlock()
				}
			}
		}
	})
	for _, way := range ways[:2] {
		way.Set(redistest.Weather{Requests: true})
	}
	go func() {
		time.Sleep(100 * time.Millisecond)
		for _, way := range ways[:2] { // what was sent is lost
			way.Cut()
			way.Set(redistest.Weather{})
		}
	}()
	_ = lock.Unlock()
	eventually(t, bound, "the key is free", func() bool { // longTTL is three times the bound
		for _, s := range servers {
			if strings.Contains(fmt.Sprint(s.Keys()), "{key}") {
				return false
			}
		}
		return true
	})
	close(stop)
	poisoning.Wait()
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestMemoryIsBounded: a lock costs no memory when another has followed it, also in a line that never ends. Nor does it
// where a master takes no acquires, in whatever way; nor is that one tried for each.
func TestMemoryIsBounded(t *testing.T) {
	const turns = 3_000
	faults := map[string]func(t *testing.T, s *redistest.Server){
		"none":   func(*testing.T, *redistest.Server) {},
		"hung":   func(_ *testing.T, s *redistest.Server) { s.Pause() },
		"killed": func(_ *testing.T, s *redistest.Server) { s.Kill() },
		"refuses writes": func(t *testing.T, s *redistest.Server) {
			if err := s.Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, fault := range faults {
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", waiters ", wait), func(t *testing.T) {
				var d diary
				timeout := longTTL / 8
				if name == "hung" {
					timeout = time.Second / 2
				}
				l, servers := onServers(t, 3, redlock.WithTimeout(timeout), d.option())
				mustUnlock(t, lockEverywhere(t, l, servers)) // a connection that is just being made is given more time
				if name == "hung" {
					defer servers[0].Resume()
				}
				fault(t, servers[0])
				run := func(turns int) (last *redlock.Lock) { // which is still held
					var workers sync.WaitGroup
					var had atomic.Int64
					for i := range 16 {
						workers.Go(func() {
							for range turns / 16 {
								key := "one"
								if !wait {
									key = fmt.Sprint(i)
								}
								lock, err := l.Lock(t.Context(), key)
								if err != nil {
									t.Error(err)
									return
								}
								if had.Add(1) == int64(turns/16*16) {
									last = lock
									return
								}
								_ = lock.Unlock()
							}
						})
					}
					workers.Wait()
					return last
				}
				eventually(t, bound, "the fault is known", func() bool {
					_ = run(turns / 10).Unlock()
					return name == "none" || len(d.find("down", "", nil)) > 0
				})
				before := heap()
				last := run(turns)
				defer func() { _ = last.Unlock() }()
				if after := heap(); after > before+turns*350 {
					t.Errorf("%d turns cost %d kB", turns, (after-before)>>10)
				}
				if downs := d.find("down", servers[0].URL(), nil); len(downs) > 1 {
					t.Errorf("the master was said to be down %d times: %v", len(downs), downs)
				}
			})
		}
	}
}

// TestForgottenConnections: something between has forgotten the connections, and swallows what is sent on
// them, while the servers are well.
func TestForgottenConnections(t *testing.T) {
	t.Parallel()
	urls, _, ways := behindForwarders(t, 3)
	l := newLocker(t, urls, redlock.WithTimeout(100*time.Millisecond))
	lockUnlock(t, l, "key")
	for _, way := range ways {
		way.Forget()
	}
	eventually(t, bound, "a lock", func() bool { // a connection lasts for three times the bound
		lock, err := l.TryLock(t.Context(), "key")
		if err == nil {
			err = lock.Unlock()
		}
		return err == nil
	})
}

// TestHungServerKeepsItsConnection: it reads what was sent on it when it wakes, in order.
func TestHungServerKeepsItsConnection(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	mustUnlock(t, lockEverywhere(t, l, servers))
	id := func() string {
		list := servers[0].Client().ClientList(t.Context()).Val()
		for line := range strings.Lines(list) {
			if strings.Contains(line, "cmd=eval") || strings.Contains(line, "cmd=lrem") || strings.Contains(line, "cmd=time") {
				return strings.Fields(line)[0]
			}
		}
		t.Fatalf("no connection of the locker's in %s", list)
		return ""
	}
	before := id()
	servers[0].Pause()
	requireState(t, l, 0, redlock.MasterHung)
	for range 20 {
		lockUnlock(t, l, "key")
		time.Sleep(50 * time.Millisecond)
	}
	servers[0].Resume()
	requireState(t, l, 0, redlock.MasterAvailable)
	lockUnlock(t, l, "key")
	if after := id(); after != before {
		t.Errorf("connection %s, was %s", after, before)
	}
}
