package redlock_test

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestForce: the lock with the fence is released wherever it is held, stays released, and no other is.
func TestForce(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		a, b := process("a"), process("b")
		for _, key := range oddKeys[:7] {
			if err := inspect.Force(t.Context(), b, key, 0, 1); !errors.Is(err, inspect.ErrFenceChanged) {
				t.Errorf("a free key: %v", err)
			}
			held := mustLock(t, a, key)
			if err := inspect.Force(t.Context(), b, key, 0, held.Fence()-1); !errors.Is(err, inspect.ErrFenceChanged) {
				t.Errorf("the fence of an earlier lock: %v", err)
			}
			if !mustInspect(t, b, key).Held || held.Err() != nil {
				t.Error("released although the fence was another's")
			}
			waited := make(chan *redlock.Lock)
			go func() { waited <- mustLock(t, b, key) }()
			eventually(t, bound, "one waits", func() bool { return len(inspect.Keys(b, key)) == 1 && inspect.Keys(b, key)[0].Waiting == 1 })
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
			if err := inspect.Force(t.Context(), b, key, 0, held.Fence()); !errors.Is(err, inspect.ErrFenceChanged) {
				t.Errorf("the same again: %v", err)
			}
			if next.Err() != nil {
				t.Errorf("the next lock: %v", next.Err())
			}
			mustUnlock(t, next)
		}
	})
}

func mustForce(t *testing.T, l *redlock.Locker, key string, fence uint64) {
	t.Helper()
	if err := inspect.Force(t.Context(), l, key, 0, fence); err != nil {
		t.Fatalf("force: %v", err)
	}
}

// TestForcedStaysFree: nobody else wants the key, and the holder's renewals don't take it back.
func TestForcedStaysFree(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		var d diary
		holder, other := simLocker(t, net.Masters(), log.option(), d.option()), simLocker(t, net.Masters())
		all, err := holder.LockAll(t.Context(), []string{"x", "y", "z"})
		if err != nil {
			t.Fatal(err)
		}
		mustForce(t, other, "y", all.Fence())
		for end := time.Now().Add(2 * simTTL); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if seen := mustInspect(t, other, "y"); seen.Held {
				t.Fatalf("held again: %+v", seen)
			}
		}
		if cause := ended(t, all.Context()); cause != redlock.ErrForced {
			t.Errorf("ended by %v", cause)
		}
		net.RequireNoKeys(t) // the other keys were released
		mustClose(t, holder) // then all is told
		if lines := log.lines("lease lost", "released by force"); len(lines) != 1 {
			t.Errorf("log: %q", lines)
		}
		if lost := d.find("lost", "", redlock.ErrForced); len(lost) != 1 {
			t.Errorf("observer: %v", lost)
		}
	})
}

// TestForceInOneProcess: the holder learns of it at once, and the call behind it has another token, which is left alone.
func TestForceInOneProcess(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		first := mustLock(t, l, "key")
		waited := make(chan *redlock.Lock)
		go func() { waited <- mustLock(t, l, "key") }()
		eventually(t, bound, "one waits", func() bool { return inspect.Keys(l, "")[0].Waiting == 1 })
		mustForce(t, l, "key", first.Fence())
		if first.Err() != redlock.ErrForced {
			t.Errorf("the holder has %v", first.Err())
		}
		second := <-waited
		_ = first.Unlock()
		if err := inspect.Force(t.Context(), l, "key", 0, first.Fence()); !errors.Is(err, inspect.ErrFenceChanged) {
			t.Errorf("the first one's fence again: %v", err)
		}
		requireHolder(t, mustInspect(t, l, "key"), inside.Of(l).Instance, second)
		mustUnlock(t, second)
		net.RequireNoKeys(t)
	})
}

// TestForceWithIllMasters: a quorum is enough; a master that hangs reads the command later.
func TestForceWithIllMasters(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l, other := simLocker(t, net.Masters()), simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		net.Servers[0].Hang()
		mustForce(t, other, "key", mustInspect(t, other, "key").Fence) // the lock's own may be on the one that hangs alone
		net.Servers[0].Resume()
		net.RequireNoKeys(t)
		if cause := ended(t, lock.Context()); cause != redlock.ErrForced {
			t.Errorf("ended by %v", cause)
		}

		lock = mustLock(t, l, "key")
		fence := mustInspect(t, other, "key").Fence
		net.Servers[0].Kill()
		net.Servers[1].Kill()
		if err := inspect.Force(t.Context(), other, "key", 0, fence); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("with one master of three: %v", err)
		}
		_ = lock.Unlock()
		mustClose(t, other)
		if err := inspect.Force(t.Context(), other, "key", 0, fence); err != redlock.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestForceRacesWithRenewals: whenever it comes, the lock ends with it, within a renewal, and fences grow.
func TestForceRacesWithRenewals(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const ttl = 200 * time.Millisecond // a renewal every 67 ms
		for _, a := range net.Addresses {
			a.Set(simnet.Weather{Delay: time.Millisecond}) // for 2 ms each is under way
		}
		l, other := simLocker(t, net.Masters(), redlock.WithTTL(ttl)), simLocker(t, net.Masters())
		var all sync.WaitGroup
		for nth, key := range []string{"a", "b", "c", "d"} {
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
					time.Sleep(time.Duration(4*i+nth) * time.Millisecond)
					if err := inspect.Force(t.Context(), other, key, 0, last); err != nil {
						t.Errorf("force: %v", err)
					}
					forced := time.Now()
					if cause := ended(t, lock.Context()); cause != redlock.ErrForced || time.Since(forced) > ttl/2 {
						t.Errorf("ended by %v, %v later", cause, time.Since(forced))
					}
					_ = lock.Unlock()
				}
			})
		}
		all.Wait()
		net.RequireNoKeys(t)
	})
}

// TestForceWithoutTheMasterOfItsFence: each master has given the lock another fence, and the one with the lock's own hangs. The others can't
// tell that fence from an earlier lock's: the error names the one that they have, which releases it.
func TestForceWithoutTheMasterOfItsFence(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithTTL(time.Minute), redlock.WithMaxTTL(time.Minute)) // nothing is renewed meanwhile
		lock := mustLock(t, l, "key")
		for i, s := range net.Servers {
			s.SetFence("key", lock.Fence()-1+uint64(i))
		}
		net.Servers[1].Hang()
		shown := lock.Fence() + 1
		if err := inspect.Force(t.Context(), l, "key", 0, lock.Fence()); !errors.Is(err, inspect.ErrFenceChanged) || !strings.Contains(err.Error(), strconv.FormatUint(shown, 10)) {
			t.Errorf("with a fence that no other master has: %v", err)
		}
		mustForce(t, l, "key", shown)
		net.Servers[1].Resume()
		net.RequireNoKeys(t)
	})
}

// TestForceWithForgottenFence: the masters forget the fence of a long lease. 0 stands for that, and not for whatever lock has the key.
func TestForceWithForgottenFence(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		for _, s := range net.Servers {
			s.SetFence("key", 0)
		}
		for _, fence := range []uint64{0, lock.Fence()} {
			if err := inspect.Force(t.Context(), l, "key", 0, fence); !errors.Is(err, inspect.ErrFenceChanged) || !strings.Contains(err.Error(), "forgotten") {
				t.Errorf("fence %d: %v", fence, err)
			}
		}
		mustUnlock(t, lock)
	})
}

// TestForceWakes: who waits for a key that is released by force is woken.
func TestForceWakes(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		first, second := simLocker(t, net.Masters()), simLocker(t, net.Masters())
		held := mustLock(t, first, "key")
		got := make(chan *redlock.Lock)
		go func() { got <- mustLock(t, second, "key") }()
		time.Sleep(time.Second)
		mustForce(t, second, "key", held.Fence())
		forced := time.Now()
		next := <-got
		if via := inside.AcquisitionOf(next).Via; via != inside.ViaWoken || time.Since(forced) > 10*time.Millisecond {
			t.Errorf("the next turn is %v, %v later", via, time.Since(forced))
		}
		mustUnlock(t, next)
	})
}
