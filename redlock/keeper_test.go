package redlock

import (
	"context"
	"testing"
	"time"
)

// TestEndsWithoutTheKeeper: a context ends at the end of its lease, although what renews and releases leases hangs.
func TestEndsWithoutTheKeeper(t *testing.T) {
	t.Parallel()
	l, err := Open([]string{"memory://"}, WithRestartGuard(0), WithTTL(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lock, err := l.Lock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	work, cancel := lock.WithContext(t.Context())
	defer cancel()
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.gates.mu.Lock()
	defer l.gates.mu.Unlock()
	select {
	case <-work.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the work goes on without a lease")
	}
	if cause := context.Cause(work); cause != ErrLost || time.Now().Before(lock.Until()) {
		t.Errorf("the work has ended by %v, %v before its lease", cause, time.Until(lock.Until()))
	}
}
