package redlock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestDemotedServers: two of three masters become replicas of an empty server and are promoted again, while all
// connections to them stay. They are the same runs, but have lost the locks that they granted.
func TestDemotedServers(t *testing.T) {
	for name, guard := range guards {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var d diary
				others := simLocker(t, net.Masters(), redlock.WithRestartGuard(guard), d.option())
				lockUnlock(t, others, "key")
				lock := mustLock(t, simLocker(t, net.Masters(), redlock.WithRestartGuard(guard)), "key")
				for _, s := range net.Servers[:2] {
					s.Demote()
				}
				for _, a := range net.Addresses[:2] {
					eventually(t, bound, "that is noticed", func() bool {
						_ = tryLock(t, others, "another")
						return len(d.find("down", a.String(), nil)) > 0
					})
				}
				for _, s := range net.Servers[:2] {
					s.Promote()
				}
				requireExclusion(t, others, lock)
				for _, a := range net.Addresses[:2] {
					d.expect(t, "down", a.String(), redlock.ErrReplaced)
				}
			})
		})
	}
}

// TestFlushedServers: two of three masters lose their data. A process notices that with its next beat.
func TestFlushedServers(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var d diary
		others := simLocker(t, net.Masters(), redlock.WithRestartGuard(simTTL+time.Second), d.option())
		lockUnlock(t, others, "key")
		lock := mustLock(t, simLocker(t, net.Masters(), redlock.WithRestartGuard(simTTL+time.Second)), "key")
		for _, s := range net.Servers[:2] {
			s.Flush()
		}
		for _, a := range net.Addresses[:2] {
			d.expect(t, "down", a.String(), redlock.ErrReplaced)
		}
		requireExclusion(t, others, lock)
	})
}

// TestNewcomersOnFlushedServers: two of three masters lose their data while a process holds a lock. One that comes then gets it as little as those that
// have known the masters before, and one that comes when all leases are over gets it at once.
func TestNewcomersOnFlushedServers(t *testing.T) {
	for _, after := range []time.Duration{0, time.Second, 5 * time.Second, 8 * time.Second} {
		for name, guard := range map[string]time.Duration{"": 11 * time.Second, " without a guard": 0} {
			if guard == 0 && after <= heartbeat.Settled {
				continue // it trusts a young memory
			}
			t.Run(fmt.Sprint(after, name), func(t *testing.T) {
				simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
					const ttl = 10 * time.Second
					opts := []redlock.Option{redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), redlock.WithRestartGuard(guard)}
					lock := mustLock(t, simLocker(t, net.Masters(), opts...), "key")
					time.Sleep(heartbeat.Every)
					flushed := time.Now()
					for _, s := range net.Servers[:2] {
						s.Flush()
					}
					time.Sleep(after)
					requireExclusion(t, simLocker(t, net.Masters(), opts...), lock)
					if rest := time.Until(flushed.Add(ttl + 4*time.Second)); rest < 0 {
						t.Errorf("nobody gets the lock until %v after the time when it must be free", -rest)
					}
					lockUnlock(t, simLocker(t, net.Masters(), opts...), "key")
				})
			})
		}
	}
}

// TestNewcomersOnUnusedServers: servers that nobody has used have no vote for two beats, and for no longer than the guard, since the first process came,
// even if that has given up at once.
func TestNewcomersOnUnusedServers(t *testing.T) {
	for _, guard := range []time.Duration{0, 2 * time.Second, 11 * time.Second} {
		t.Run(guard.String(), func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				for _, s := range net.Servers {
					s.Flush()
				}
				began, opts := time.Now(), []redlock.Option{redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithRestartGuard(guard)}
				first := simLocker(t, net.Masters(), opts...)
				if _, err := first.TryLock(t.Context(), "key"); (guard > 0) != errors.Is(err, redlock.ErrRestarted) {
					t.Errorf("the first process gets %v", err)
				}
				_ = first.Close()
				time.Sleep(time.Second)
				lockUnlock(t, simLocker(t, net.Masters(), opts...), "key")
				if took, least := time.Since(began), max(time.Second, min(guard, heartbeat.Settled)); took < least || took > least+time.Second {
					t.Errorf("the second process has the lock %v after the first came", took)
				}
				time.Sleep(heartbeat.Settled)
				began = time.Now()
				if lockUnlock(t, simLocker(t, net.Masters(), opts...), "key"); time.Since(began) > time.Second {
					t.Errorf("the next one waits for %v", time.Since(began))
				}
			})
		})
	}
}

// requireExclusion has another Locker try to take a lock until the holder's keys are back on the masters, or its
// lease has ended.
func requireExclusion(t *testing.T, others *redlock.Locker, lock *redlock.Lock) {
	t.Helper()
	unlocked := false
	eventually(t, 3*bound, "the lock is free again", func() bool {
		valid := lock.Err() == nil // before the other asks
		second, err := others.TryLock(t.Context(), "key")
		switch {
		case errors.Is(err, redlock.ErrHeld) && !unlocked: // by the first, on the masters that vote again
			unlocked = true
			_ = lock.Unlock() // it may have been lost
		case err == nil && !unlocked && valid && time.Now().Before(lock.Until()):
			t.Fatalf("a second holder, the first is valid for %v", time.Until(lock.Until()))
		case err == nil:
			_ = second.Unlock() // likewise
		}
		return err == nil
	})
}
