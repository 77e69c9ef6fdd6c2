package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	wire "github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestLateExtendIsUndone: extends that were under way when their connections broke arrive after Unlock,
// and take the free key anew. It is released once more, long before they would end by themselves.
func TestLateExtendIsUndone(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const ttl = 4 * time.Second // of longer ones, an extend that meets a free key is asked again
		l := simLocker(t, net.Masters(), redlock.WithTimeout(time.Second), redlock.WithTTL(ttl))
		lock := mustLock(t, l, "key")
		time.Sleep(ttl/3 - ttl/15) // so short before the extends that nothing else waits on the connections until they are in doubt
		var deliver []func()
		for _, way := range net.Addresses[:2] {
			deliver = append(deliver, way.Hold())
		}
		time.Sleep(ttl/15 + ttl/30) // the extends are on their way
		for _, way := range net.Addresses[:2] {
			way.LoseClients()
		}
		if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) { // the connections have just gone
			t.Fatal(err)
		}
		eventually(t, bound, "the key is free", func() bool { return keysOn(net) == 0 })
		for _, late := range deliver {
			late()
		}
		synctest.Wait()
		if n := keysOn(net); n != 2 {
			t.Fatalf("%d masters have the key anew", n)
		}
		eventually(t, ttl/2, "nobody's key is gone", func() bool { return keysOn(net) == 0 })
	})
}

func keysOn(net *simnet.Net) (n int) {
	for _, s := range net.Servers {
		n += len(s.Keys())
	}
	return n
}

// TestOwedReleasesDontStarve: a release that a master missed is repeated, also while others fail all the time.
func TestOwedReleasesDontStarve(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithTTL(time.Hour), redlock.WithMaxTTL(time.Hour))
		wrong := protocol.Reply{Err: wire.ErrorOf("WRONGTYPE Operation against a key holding the wrong kind of value")}
		for _, s := range net.Servers[:2] {
			s.Forge(func(cmd *simnet.Command) bool {
				poison := strings.Contains(cmd.Key, "{poison}") // of another program
				if poison {
					cmd.Reply = wrong
				}
				return poison
			})
		}
		lock := mustLock(t, l, "key")
		onEach(t, net, 1)
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
		for _, way := range net.Addresses[:2] {
			way.Set(simnet.Weather{Requests: true})
		}
		time.AfterFunc(100*time.Millisecond, func() {
			for _, way := range net.Addresses[:2] { // what was sent is lost
				way.Cut()
				way.Set(simnet.Weather{})
			}
		})
		_ = lock.Unlock()
		eventually(t, bound, "the key is free", func() bool { return !slices.Contains(keysOf(net), redisKey("key")) })
		close(stop)
		poisoning.Wait()
	})
}

func keysOf(net *simnet.Net) (keys []string) {
	for _, s := range net.Servers {
		keys = append(keys, s.Keys()...)
	}
	return keys
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
	const turns = 1_000
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
				eventually(t, bound, fmt.Sprintf("%d turns cost less than %d kB", turns, turns*350>>10), func() bool { // once the slowest master has answered
					return heap() <= before+turns*350
				})
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
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lockUnlock(t, l, "key")
		for _, way := range net.Addresses {
			way.Forget()
		}
		eventually(t, bound, "a lock", func() bool { // a connection lasts for three times the bound
			lock, err := l.TryLock(t.Context(), "key")
			if err == nil {
				err = lock.Unlock()
			}
			return err == nil
		})
	})
}

// TestHungServerKeepsItsConnection: it reads what was sent on it when it wakes, in order.
func TestHungServerKeepsItsConnection(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		onEach(t, net, 1)
		mustUnlock(t, lock)
		before := net.Servers[0].Asked()
		net.Servers[0].Hang()
		requireState(t, l, 0, redlock.MasterHung)
		for range 20 {
			lockUnlock(t, l, "key")
			time.Sleep(50 * time.Millisecond)
		}
		net.Servers[0].Resume()
		requireState(t, l, 0, redlock.MasterAvailable)
		asked := net.Servers[0].Calls(simnet.Acquire)
		lockUnlock(t, l, "key")
		time.Sleep(time.Millisecond)
		if net.Servers[0].Calls(simnet.Acquire) == asked || net.Servers[0].Asked() != before {
			t.Error("the server is not asked on the connection that it had")
		}
	})
}
