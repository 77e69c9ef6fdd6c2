package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func keysUpTo(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key ", i))
	}
	return keys
}

// TestSeveralKeysTakeOneRound: several keys are locked in as many round trips as one, and a majority that hangs
// costs its timeout once. The time is that of the synctest bubble.
func TestSeveralKeysTakeOneRound(t *testing.T) {
	const trip, timeout = 10 * time.Millisecond, time.Second
	for _, n := range []int{1, 2, 16, 200} {
		synctest.Test(t, func(t *testing.T) {
			var hang delay
			servers := farServers(3)
			l := lockerOn(t, view(servers, func(m *farMaster) {
				m.back = after(trip)
				if m.farServer != servers[0] {
					m.there = hang.get
				}
			}), redlock.WithTimeout(timeout))
			ahead := lockerOn(t, view(servers, func(*farMaster) {}))
			time.Sleep(time.Second) // the first connect is over
			rounds := func(what string, want time.Duration, f func() error) {
				t.Helper()
				start := time.Now()
				if err := f(); err != nil {
					t.Errorf("%d keys, %s: %v", n, what, err)
				}
				if took := time.Since(start); took > want {
					t.Errorf("%d keys, %s: %v, want at most %v", n, what, took, want)
				}
				synctest.Wait()
			}
			var lock *redlock.Lock
			take := func() (err error) {
				lock, err = l.LockAll(t.Context(), keysUpTo(n), redlock.WithWait(0))
				return err
			}
			rounds("lock", trip, take)
			rounds("unlock", trip, func() error { return lock.Unlock() })
			for range 2 { // the last key's fence is above the next proposal
				lockUnlock(t, ahead, fmt.Sprint("key ", n-1))
				time.Sleep(time.Second) // a release that is under way costs the next lock a round trip
			}
			rounds("lock with a raise", 2*trip, take)
			rounds("unlock", trip, func() error { return lock.Unlock() })
			time.Sleep(time.Second)
			hang.set(time.Hour)
			rounds("lock of a majority that hangs", timeout, func() error {
				if err := take(); !errors.Is(err, redlock.ErrNoQuorum) {
					return fmt.Errorf("error %w, want ErrNoQuorum", err)
				}
				return nil
			})
			hang.set(0)
			time.Sleep(2 * time.Hour)
		})
	}
}

// TestManyKeys: as many keys as one call may have are locked and freed; more are refused before any command is
// sent.
func TestManyKeys(t *testing.T) {
	l, servers := onServers(t, 3)
	lock, err := l.LockAll(t.Context(), keysUpTo(redlock.MaxKeys))
	if err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, lock)
	redistest.RequireNoKeys(t, servers)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // whoever begins says so
	for _, n := range []int{redlock.MaxKeys + 1, 5000} {
		if _, err := l.LockAll(ctx, keysUpTo(n)); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%d keys: %v, want that they are too many", n, err)
		}
	}
}
