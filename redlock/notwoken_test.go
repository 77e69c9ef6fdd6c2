package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestNotWoken: a process that too few masters can wake takes locks that are free, waits for none, and says which right it lacks. Once it has
// that right, it waits. One master that denies it doesn't matter.
func TestNotWoken(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		own := ownNetwork(net)
		for _, a := range own {
			a.Deny(true)
		}
		other, l := simLocker(t, net.Masters()), simLocker(t, net.Masters(own...), log.option())
		lockUnlock(t, l, "key")
		held := mustLock(t, other, "key")
		began := time.Now()
		if lock, err := l.Lock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) || !errors.Is(err, redlock.ErrNotWoken) {
			t.Errorf("%v, %v, want ErrHeld and ErrNotWoken", lock, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it has waited for %v", took)
		}
		log.expect(t, "level=WARN", "denies SUBSCRIBE", "grant this user +subscribe and the channels of the prefix")
		for _, a := range own[1:] {
			a.Deny(false)
		}
		time.Sleep(10 * time.Second) // the subscriptions that were denied are over
		via := make(chan string)
		go func() {
			lock := mustLock(t, l, "key")
			via <- inside.AcquisitionOf(lock).Via
			mustUnlock(t, lock)
		}()
		time.Sleep(time.Second)
		mustUnlock(t, held)
		if via := <-via; via != inside.ViaWoken {
			t.Errorf("with the right on two masters, its turn came %q", via)
		}
		net.RequireNoKeys(t)
	})
}
