package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestUnlockOfFirstLock: a lock that was taken while the connections were being made waited for them, but its Unlock does not wait as long for
// masters that hang.
func TestUnlockOfFirstLock(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		// Making a connection may take 8 * 4 * 300 ms; Unlock used to wait for twice that.
		lock := mustLock(t, simLocker(t, net.Masters(), redlock.WithTimeout(300*time.Millisecond)), "key")
		for _, s := range net.Servers {
			s.Hang()
		}
		begun := time.Now()
		if err := lock.Unlock(); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("Unlock: %v, want ErrNoQuorum", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("Unlock waits for %v for masters that hang", took)
		}
		for _, s := range net.Servers {
			s.Resume()
		}
	})
}
