package redlock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// simTTL is the TTL of locks in virtual time, and the longest.
const simTTL = 10 * time.Second

var simLife = []redlock.Option{redlock.WithTTL(simTTL), redlock.WithMaxTTL(simTTL), redlock.WithTimeout(50 * time.Millisecond)}

// simLocker gives a Locker on masters of a simnet, with the timeout of a product: no machine is busy there.
func simLocker(t testing.TB, masters []redlock.Master, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	return lockerOn(t, masters, append(slices.Clone(simLife), opts...)...)
}

// stays requires that something holds for a time, at each hundredth of it.
func stays(t testing.TB, d time.Duration, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(d / 100) {
		if !condition() {
			t.Fatalf("not any more, %v before the end of %v: %s", time.Until(end), d, what)
		}
	}
}
