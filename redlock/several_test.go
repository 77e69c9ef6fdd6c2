package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestPairs: 1,000 calls of two processes, each for two of five keys in any order. All get their keys, no two hold
// one at the same time, and nothing is left.
func TestPairs(t *testing.T) {
	t.Parallel()
	const calls, keys = 1000, 5
	patient := redlock.WithTimeout(longTTL / 8) // the most that it may be
	one, servers := onServers(t, 3, patient)
	lockers := []*redlock.Locker{one, newLocker(t, redistest.URLs(servers), patient)}
	var holders [keys]atomic.Int64
	var fences [keys]atomic.Uint64
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range calls {
		a, b := rand.IntN(keys), rand.IntN(keys)
		all.Go(func() {
			defer done.Add(1)
			lock, err := lockers[i%2].LockAll(t.Context(), []string{fmt.Sprint(a), fmt.Sprint(b)})
			if err != nil {
				t.Errorf("lock: %v", err)
				return
			}
			taken := []int{a, b}
			if a == b {
				taken = taken[:1]
			}
			for _, key := range taken {
				if !holders[key].CompareAndSwap(0, 1) {
					t.Errorf("two hold key %d at once", key)
				}
				if before := fences[key].Swap(lock.Fence()); before >= lock.Fence() {
					t.Errorf("fence %d of key %d after %d", lock.Fence(), key, before)
				}
			}
			for _, key := range taken {
				holders[key].Store(0)
			}
			if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
				t.Errorf("unlock: %v", err)
			}
		})
	}
	for last := int64(0); last < calls; last = done.Load() {
		eventually(t, bound, "another call ends", func() bool { return done.Load() > last })
	}
	all.Wait()
	redistest.RequireNoKeys(t, servers)
}

// TestSeveralKeysHaveOneFence: where the fence of one key is ahead, that of the others grows with it.
func TestSeveralKeysHaveOneFence(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		first := mustLock(t, l, "ahead")
		mustUnlock(t, first)
		for _, s := range net.Servers {
			s.SetFence("ahead", first.Fence()+uint64(time.Minute.Microseconds()))
		}
		both, err := l.LockAll(t.Context(), []string{"ahead", "behind"})
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, both)
		next := mustLock(t, l, "behind")
		if both.Fence() <= first.Fence() || next.Fence() <= both.Fence() {
			t.Errorf("fence %d of both keys after %d of one, and %d of the other after that", both.Fence(), first.Fence(), next.Fence())
		}
		mustUnlock(t, next)
	})
}

// TestAllOrNothing: while one key is held, the others are neither taken nor kept for the call that waits.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	other := newLocker(t, redistest.URLs(servers))
	held := mustLock(t, l, "b")
	for _, l := range []*redlock.Locker{l, other} {
		if err := answered(t, func() error {
			_, err := l.LockAll(t.Context(), []string{"a", "b", "c"}, redlock.WithWait(0))
			return err
		}); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("error %v, want that it is held", err)
		}
		lockUnlock(t, l, "a")
		lockUnlock(t, l, "c")
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := other.LockAll(ctx, []string{"c", "b", "a"})
		waiting <- err
	}()
	eventually(t, bound, "it waits", func() bool {
		select {
		case err := <-waiting:
			t.Fatalf("it doesn't wait: %v", err)
		default:
		}
		return servers[0].Client().ZCard(t.Context(), redisKey("b")+":queue").Val() == 1
	})
	for _, l := range []*redlock.Locker{l, other} {
		for _, free := range []string{"a", "c"} {
			inner, err := l.Lock(t.Context(), free, redlock.WithWait(bound))
			if err != nil {
				t.Fatalf("a key that is free, while a call for several waits for another: %v", err)
			}
			mustUnlock(t, inner)
		}
	}
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	lockUnlock(t, l, "a")
	mustUnlock(t, held)
	redistest.RequireNoKeys(t, servers)
}

// TestNestedAndAll: who holds a key, for which a call for several waits, gets another key of that call, in the same process and in
// another one; the call gets its keys afterwards.
func TestNestedAndAll(t *testing.T) {
	one, servers := onServers(t, 3)
	for name, l := range map[string]*redlock.Locker{"one process": one, "two processes": newLocker(t, redistest.URLs(servers))} {
		outer := mustLock(t, one, "a")
		all := make(chan error)
		go func() {
			lock, err := l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithWait(2*bound))
			if err == nil {
				if err = lock.Unlock(); errors.Is(err, redlock.ErrNoQuorum) { // the reply may be late on a busy machine
					err = nil
				}
			}
			all <- err
		}()
		eventually(t, bound, "it waits", func() bool {
			if l == one {
				return inspect.Keys(l, "a")[0].Waiting == 1
			}
			return servers[0].Client().ZCard(t.Context(), redisKey("a")+":queue").Val() == 1
		})
		inner, err := one.Lock(t.Context(), "b", redlock.WithWait(bound))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		mustUnlock(t, inner)
		mustUnlock(t, outer)
		if err := <-all; err != nil {
			t.Errorf("%s: the call for both: %v", name, err)
		}
	}
	redistest.RequireNoKeys(t, servers)
}

// TestLineOfSeveral: within a process a call for several keys is not overtaken, at a key that is held like another of its keys, by calls
// that came later.
func TestLineOfSeveral(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	a, b := mustLock(t, l, "a"), mustLock(t, l, "b")
	order := make(chan string, 2)
	var calls sync.WaitGroup
	call := func(name string, waiting int, keys ...string) {
		calls.Go(func() {
			lock, err := l.LockAll(t.Context(), keys)
			if err != nil {
				t.Error(err)
				return
			}
			order <- name
			mustUnlock(t, lock)
		})
		at := keys[0]
		eventually(t, bound, name+" waits", func() bool { return inspect.Keys(l, at)[0].Waiting == waiting })
	}
	call("both", 1, "a", "b")
	call("b alone", 2, "b")
	mustUnlock(t, a)
	mustUnlock(t, b)
	calls.Wait()
	if first := <-order; first != "both" {
		t.Errorf("%s was first", first)
	}
}

// TestSeveralThatMeet: calls for pairs of three keys, of four processes, don't give back by turns what the oldest of them wants. In
// 20 seconds 1,750 get their keys, and 1,300 where they don't insist, each time within a few percent.
func TestSeveralThatMeet(t *testing.T) {
	const processes, calls, keys, least = 4, 6, 3, 1550
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
		defer end()
		var all sync.WaitGroup
		var granted atomic.Int64
		for p := range processes {
			var far []*simnet.Address
			for i, s := range net.Servers {
				address := simnet.NewAddress(fmt.Sprintf("sim://%d", i), s)
				address.Set(simnet.Weather{Delay: time.Duration(1+(3*p+i)%4) * time.Millisecond})
				far = append(far, address)
			}
			l := simLocker(t, net.Masters(far...), redlock.WithTimeout(50*time.Millisecond))
			for range calls {
				all.Go(func() {
					for ctx.Err() == nil {
						a := rand.IntN(keys)
						lock, err := l.LockAll(ctx, []string{fmt.Sprint(a), fmt.Sprint((a + 1) % keys)})
						if err == nil {
							granted.Add(1)
							mustUnlock(t, lock)
						}
					}
				})
			}
		}
		all.Wait()
		if got := granted.Load(); got < least {
			t.Errorf("%d calls got their keys, want at least %d", got, least)
		}
	})
}

// TestAllAreLostTogether: when another token takes one of the keys, the lock is lost and its other keys are freed.
func TestAllAreLostTogether(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	l, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/2))
	lock, err := l.LockAll(t.Context(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		steal(t, s, "b", time.Minute)
	}
	if cause := ended(t, lock.Context()); !errors.Is(cause, redlock.ErrLost) {
		t.Errorf("cause %v, want that it is lost", cause)
	}
	lockUnlock(t, l, "a")
	if err := lock.Unlock(); err == nil {
		t.Error("unlocked as if it had been held")
	}
	for _, s := range servers {
		if err := s.Client().Del(t.Context(), redisKey("b")).Err(); err != nil {
			t.Fatal(err)
		}
	}
	redistest.RequireNoKeys(t, servers)
}
