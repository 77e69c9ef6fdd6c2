package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestFlappingMaster: one of three masters is away twice, at all distances at which what the process has registered meanwhile has just
// been forgotten. That is no loss of data: the lease that is held meanwhile is kept, and its result is stored.
func TestFlappingMaster(t *testing.T) {
	for gap := simTTL + 4*time.Second; gap < simTTL+6*time.Second; gap += 250 * time.Millisecond {
		t.Run(gap.String(), func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var d diary
				l := simLocker(t, net.Masters(), d.option())
				held := mustLock(t, l, "held")
				for range 2 {
					net.Addresses[0].MoveTo(nil)
					eventually(t, bound, "the master is missed", func() bool { return l.Status().Available == 2 })
					for range 3 {
						lockUnlock(t, l, "order:1")
						time.Sleep(time.Second)
					}
					net.Addresses[0].MoveTo(net.Servers[0])
					time.Sleep(gap)
				}
				unlockWith(t, held, []byte("done"), time.Minute)
				if done := recalled(t, l, "held"); string(done.Result) != "done" {
					t.Errorf("%q", done.Result)
				}
				if down := d.find("down", "", redlock.ErrReplaced); len(down) > 0 {
					t.Errorf("taken for one that has lost its data: %v", down)
				}
			})
		})
	}
}

// pick returns the URLs of some of the servers.
func pick(servers []*redistest.Server, which ...int) (urls []string) {
	for _, i := range which {
		urls = append(urls, servers[i].URL())
	}
	return urls
}

// TestRefusedWhenTheSharedMasterForgets: two processes with different masters share one, which loses its data. The one that is refused stays
// so, and the other keeps its lock, whichever of the two has the first names.
func TestRefusedWhenTheSharedMasterForgets(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"flushed", "restarted"} {
		for _, swapped := range []bool{false, true} {
			t.Run(fmt.Sprint(how, swapped), func(t *testing.T) {
				t.Parallel()
				servers := redistest.Start(t, 5)
				slices.SortFunc(servers, func(a, b *redistest.Server) int { return strings.Compare(a.URL(), b.URL()) })
				here, there := pick(servers, 0, 1, 2), pick(servers, 0, 3, 4)
				if swapped {
					here, there = there, here
				}
				var log logBook
				longLife := []redlock.Option{redlock.WithTTL(longTTL / 2), redlock.WithMaxTTL(longTTL / 2), redlock.WithTimeout(longTTL / 10)}
				right := newLocker(t, here, longLife...)
				held := mustLock(t, right, "held")
				wrong := newLocker(t, there, append(longLife, log.option())...)
				refused := func() bool { return wrong.Status().Err != nil }
				eventually(t, bound, "the other process is refused", refused)
				if how == "flushed" {
					command(t, servers[0], "FLUSHALL")
				} else {
					servers[0].Kill()
					servers[0].Restart()
				}
				for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					if lock, err := wrong.TryLock(t.Context(), "held"); err == nil && held.Err() == nil {
						t.Fatalf("two hold the key: %v", lock.Err())
					}
					if right.Status().Err != nil {
						t.Fatalf("the process that was first: %v", right.Status().Err)
					}
				}
				if held.Err() != nil || !refused() {
					t.Errorf("the lock of the first process: %v; the other is refused: %v", held.Err(), wrong.Status().Err)
				}
				if lines := log.lines("next step of a change"); len(lines) > 0 {
					t.Errorf("a process that is refused tells that a change is complete: %q", lines)
				}
			})
		}
	}
}

// TestStoppedProcessLosesItsLocks: two processes with different masters have both locked while the master that they share was down. Once it
// is up, the younger one stops, and its locks are lost; the lock of the elder one goes on.
func TestStoppedProcessLosesItsLocks(t *testing.T) {
	simnet.Run(t, 5, func(t *testing.T, net *simnet.Net) {
		net.Servers[0].Kill()
		elder := simLocker(t, net.Pick(0, 1, 2))
		held := mustLock(t, elder, "held")
		younger := simLocker(t, net.Pick(0, 3, 4))
		lost := mustLock(t, younger, "held")
		net.Servers[0].Restart()
		eventually(t, bound, "the younger one is refused", func() bool { return younger.Status().Err != nil })
		eventually(t, bound, "its lock is lost", func() bool { return lost.Err() != nil })
		if err := context.Cause(lost.Context()); !errors.Is(err, redlock.ErrLost) {
			t.Errorf("the lock of the younger one: %v", err)
		}
		if err := held.Err(); err != nil {
			t.Errorf("the lock of the elder one: %v", err)
		}
	})
}

// TestManyProcesses: many processes, each of which knows the masters by names of its own as behind port-forwards, all get locks, and are
// of one kind: none has to hear of more than the eldest.
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	processes := 200
	if redistest.Few() {
		processes = 20
	}
	var start sync.WaitGroup
	for i := range processes {
		masters := make([]redlock.Master, len(servers))
		for k, s := range servers {
			masters[k] = namedAs(t, fmt.Sprintf("127.%d.%d.1:6379", 1+k, i), s)
		}
		l := lockerOn(t, masters, redlock.WithTTL(bound), redlock.WithMaxTTL(bound), redlock.WithTimeout(bound/4)) // 600 connections at once, with the race detector
		start.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 6*bound) // a busy machine
			defer cancel()
			lock, err := l.Lock(ctx, fmt.Sprint("order:", i))
			if err != nil {
				t.Error(err)
				return
			}
			mustUnlock(t, lock)
		})
	}
	start.Wait()
	for _, s := range servers {
		eventually(t, 6*bound, "all are known as one kind", func() bool {
			all, _ := s.Client().ZRange(t.Context(), "redlock:processes:{processes}:kinds", 0, -1).Result()
			kinds := make(map[string]bool)
			for _, one := range all {
				kinds[strings.Fields(one)[1]] = true
			}
			return len(all) == processes && len(kinds) == 1
		})
	}
}

// namedAs returns a master with this name, which leads to a server.
func namedAs(t *testing.T, name string, s *redistest.Server) redlock.Master {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: name, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Addr())
	}})
	defer func() { _ = client.Close() }() // NewMaster uses its options only
	m, err := redlock.NewMaster(client)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
