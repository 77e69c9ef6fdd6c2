package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestMasterThatLies: one of three masters breaks the limits of replies. It is as good as away: the others decide.
func TestMasterThatLies(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		liar := simnet.NewAddress("sim://0", net.Servers[0])
		holder, waiter := simLocker(t, net.Masters()), simLocker(t, net.Masters(liar, net.Addresses[1], net.Addresses[2]))
		lockUnlock(t, waiter, "key")
		liar.Garble(true)
		for _, key := range []string{"key", "slots"} {
			var held []*redlock.Lock
			options := []redlock.LockOption{redlock.WithConcurrency(1)}
			if key == "slots" {
				options[0] = redlock.WithConcurrency(2)
				held = append(held, mustLock(t, holder, key, options...))
			}
			held = append(held, mustLock(t, holder, key, options...))
			if _, err := waiter.Lock(t.Context(), key, append(options, redlock.WithWait(3*time.Second))...); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("%s: %v, want that it is held", key, err)
			}
			for _, lock := range held {
				mustUnlock(t, lock)
			}
			mustUnlock(t, mustLock(t, waiter, key, options...))
		}
	})
}

// TestOnlyMasterLies: a caller that is alone with its master reads the replies itself, and meets the same limits.
func TestOnlyMasterLies(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		for range 100 { // from some on it is taken to be alone
			lockUnlock(t, l, "key")
		}
		net.Addresses[0].Garble(true)
		if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("%v, want that no quorum was reached", err)
		}
	})
}
