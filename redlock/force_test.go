package redlock_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestForceUnlock: the lock with the fence is released wherever it is held, stays released, and no other is.
func TestForceUnlock(t *testing.T) {
	t.Parallel()
	for name, open := range deployments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 9 * time.Second
			process := open(t, redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl))
			a, b := process("a"), process("b")
			for _, key := range oddKeys[:7] {
				if err := answered(t, func() error { return b.ForceUnlock(t.Context(), key, 1) }); !errors.Is(err, redlock.ErrFenceChanged) {
					t.Errorf("a free key: %v", err)
				}
				held := mustLock(t, a, key)
				if err := answered(t, func() error { return b.ForceUnlock(t.Context(), key, held.Fence()-1) }); !errors.Is(err, redlock.ErrFenceChanged) {
					t.Errorf("the fence of an earlier lock: %v", err)
				}
				if !inspect(t, b, key).Held || held.Err() != nil {
					t.Error("released although the fence was another's")
				}
				waited := make(chan *redlock.Lock)
				go func() { waited <- mustLock(t, b, key) }()
				eventually(t, bound, "one waits", func() bool { return len(b.Keys(key)) == 1 && b.Keys(key)[0].Waiting == 1 })
				inspectWhole(t, b, key, "a")
				mustForce(t, b, key, held.Fence())
				next := <-waited
				if next.Fence() <= held.Fence() {
					t.Errorf("fence %d after %d", next.Fence(), held.Fence())
				}
				if cause := ended(t, held.Context()); cause != redlock.ErrForced || held.Err() != redlock.ErrForced {
					t.Errorf("the holder's lock ended by %v", cause)
				}
				if err := held.Unlock(); !errors.Is(err, redlock.ErrForced) || !errors.Is(err, redlock.ErrLost) || !errors.Is(err, redlock.ErrExpired) {
					t.Errorf("the holder's Unlock: %v", err)
				}
				if err := answered(t, func() error { return b.ForceUnlock(t.Context(), key, held.Fence()) }); !errors.Is(err, redlock.ErrFenceChanged) {
					t.Errorf("the same again: %v", err)
				}
				if next.Err() != nil {
					t.Errorf("the next lock: %v", next.Err())
				}
				mustUnlock(t, next)
			}
		})
	}
}

// TestForcedStaysFree: nobody else wants the key, and the holder's renewals don't take it back.
func TestForcedStaysFree(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	var log logBook
	var d diary
	holder, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), log.option(), d.option())
	other := newLocker(t, redistest.URLs(servers), redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl))
	all, err := holder.LockAll(t.Context(), []string{"x", "y", "z"})
	if err != nil {
		t.Fatal(err)
	}
	inspectWhole(t, other, "y", holder.Instance())
	mustForce(t, other, "y", all.Fence())
	for all.Err() == nil {
		if seen := inspect(t, other, "y"); seen.Held {
			t.Fatalf("held again: %+v", seen)
		}
	}
	if cause := ended(t, all.Context()); cause != redlock.ErrForced {
		t.Errorf("ended by %v", cause)
	}
	redistest.RequireNoKeys(t, servers) // the other keys were released
	mustClose(t, holder)                // then all is told
	if lines := log.lines("lease lost", "released by force"); len(lines) != 1 {
		t.Errorf("log: %q", lines)
	}
	if lost := d.find("lost", "", redlock.ErrForced); len(lost) != 1 {
		t.Errorf("observer: %v", lost)
	}
}

// TestForceInOneProcess: the holder learns of it at once, and the call behind it has another token, which is left alone.
func TestForceInOneProcess(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3) // its locks are renewed after 10 s
	first := mustLock(t, l, "key")
	waited := make(chan *redlock.Lock)
	go func() { waited <- mustLock(t, l, "key") }()
	eventually(t, bound, "one waits", func() bool { return l.Keys("")[0].Waiting == 1 })
	inspectWhole(t, l, "key", l.Instance())
	mustForce(t, l, "key", first.Fence())
	if first.Err() != redlock.ErrForced {
		t.Errorf("the holder has %v", first.Err())
	}
	second := <-waited
	_ = first.Unlock()
	if err := answered(t, func() error { return l.ForceUnlock(t.Context(), "key", first.Fence()) }); !errors.Is(err, redlock.ErrFenceChanged) {
		t.Errorf("the first one's fence again: %v", err)
	}
	requireHolder(t, inspect(t, l, "key"), l.Instance(), second)
	mustUnlock(t, second)
	redistest.RequireNoKeys(t, servers)
}

// TestForceWithIllMasters: a quorum is enough; a master that hangs reads the command later.
func TestForceWithIllMasters(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTimeout(time.Second/2))
	other := newLocker(t, redistest.URLs(servers), redlock.WithTimeout(time.Second/2))
	lock := mustLock(t, l, "key")
	inspectWhole(t, other, "key", l.Instance())
	servers[0].Pause()
	mustForce(t, other, "key", inspect(t, other, "key").Fence) // the lock's own may be on the paused one alone
	servers[0].Resume()
	redistest.RequireNoKeys(t, servers)
	if cause := ended(t, lock.Context()); cause != redlock.ErrForced {
		t.Errorf("ended by %v", cause)
	}

	lock = mustLock(t, l, "key")
	fence := inspectWhole(t, other, "key", l.Instance()).Fence
	servers[0].Kill()
	servers[1].Kill()
	if err := other.ForceUnlock(t.Context(), "key", fence); !errors.Is(err, redlock.ErrNoQuorum) {
		t.Errorf("with one master of three: %v", err)
	}
	_ = lock.Unlock()
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := other.ForceUnlock(t.Context(), "key", fence); err != redlock.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}

// TestForceRacesWithRenewals: whenever it comes, the lock ends with it, within a renewal, and fences grow.
func TestForceRacesWithRenewals(t *testing.T) {
	t.Parallel()
	const ttl = 200 * time.Millisecond // a renewal every 67 ms
	l, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/2))
	other := newLocker(t, redistest.URLs(servers))
	var all sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			var last uint64
			for i := range 25 {
				lock, err := l.Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				if lock.Fence() <= last {
					t.Errorf("fence %d after %d", lock.Fence(), last)
				}
				last = lock.Fence()
				time.Sleep(time.Duration(i) * ttl / 50)
				err = other.ForceUnlock(t.Context(), key, last)
				late := errors.Is(err, redlock.ErrNoQuorum)
				for errors.Is(err, redlock.ErrNoQuorum) && lock.Err() == nil {
					err = other.ForceUnlock(t.Context(), key, last)
				}
				if err != nil && !late && lock.Err() == nil {
					t.Errorf("force: %v, and the lock is held", err)
				}
				if cause := ended(t, lock.Context()); !errors.Is(cause, redlock.ErrLost) { // not by force on a machine that is too slow for this TTL
					t.Errorf("ended by %v", cause)
				}
				_ = lock.Unlock()
			}
		})
	}
	all.Wait()
	redistest.RequireNoKeys(t, servers)
}

// TestForceWithoutTheMasterOfItsFence: each master has given the lock another fence, and the one with the lock's own hangs. The others can't
// tell that fence from an earlier lock's: the error names the one that they have, which releases it.
func TestForceWithoutTheMasterOfItsFence(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTTL(time.Minute), redlock.WithMaxTTL(time.Minute)) // nothing is renewed meanwhile
	lock := lockEverywhere(t, l, servers)
	for i, s := range servers {
		if err := s.Client().LSet(t.Context(), redisKey("key"), -1, lock.Fence()-1+uint64(i)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	servers[1].Pause()
	shown := lock.Fence() + 1
	if err := answered(t, func() error { return l.ForceUnlock(t.Context(), "key", lock.Fence()) }); !errors.Is(err, redlock.ErrFenceChanged) || !strings.Contains(err.Error(), strconv.FormatUint(shown, 10)) {
		t.Errorf("with a fence that no other master has: %v", err)
	}
	mustForce(t, l, "key", shown)
	servers[1].Resume()
	redistest.RequireNoKeys(t, servers)
}

// TestForceWithForgottenFence: the masters forget the fence of a long lease. 0 stands for that, and not for whatever lock has the key.
func TestForceWithForgottenFence(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	lock := lockEverywhere(t, l, servers)
	for _, s := range servers {
		if err := s.Client().LTrim(t.Context(), redisKey("key"), 0, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, fence := range []uint64{0, lock.Fence()} {
		if err := answered(t, func() error { return l.ForceUnlock(t.Context(), "key", fence) }); !errors.Is(err, redlock.ErrFenceChanged) || !strings.Contains(err.Error(), "forgotten") {
			t.Errorf("fence %d: %v", fence, err)
		}
	}
	mustUnlock(t, lock)
}

// TestForceByNumber: who releases a key by force is only told, also if its name is a number; who waits for the key is woken.
func TestForceByNumber(t *testing.T) {
	t.Parallel()
	const long = 4 * bound // a waiter that isn't woken asks again after a third of it
	options := []redlock.Option{redlock.WithTTL(long), redlock.WithMaxTTL(long)}
	first, servers := onServers(t, 3, options...)
	held := mustLock(t, first, "key")
	second := newLocker(t, redistest.URLs(servers), append(options, redlock.WithInstance("2"))...)
	got := make(chan *redlock.Lock)
	go func() { got <- mustLock(t, second, "key") }()
	eventually(t, bound, "it waits on all masters", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool {
			return s.Client().ZCard(t.Context(), redisKey("key")+":queue").Val() == 0
		})
	})
	if err := answered(t, func() error { return second.ForceUnlock(t.Context(), "key", held.Fence()) }); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, within(t, got))
}
