package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestUnlockOfFirstLock: a lock that was taken while the connections were being made waited for them, but its Unlock does not wait as long for
// masters that hang.
func TestUnlockOfFirstLock(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	// Making a connection may take 8 * 4 * 300 ms; Unlock used to wait for twice that.
	lock := mustLock(t, newLocker(t, redistest.URLs(servers), redlock.WithTimeout(300*time.Millisecond)), "key")
	for _, s := range servers {
		s.Pause()
	}
	unlocked := make(chan error, 1)
	go func() { unlocked <- lock.Unlock() }()
	select {
	case err := <-unlocked:
		if !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("Unlock: %v, want ErrNoQuorum", err)
		}
	case <-time.After(bound):
		t.Error("Unlock waits for masters that hang")
		<-unlocked
	}
	for _, s := range servers {
		s.Resume()
	}
}
