package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
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
