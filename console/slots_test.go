package console_test

import (
	"net/http"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSlots: each slot that is held is listed, and a key that one holds at a time has none.
func TestSlots(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Start(t, 1))
	for key, n := range map[string]int{"several": 3, "one": 1} {
		for range min(n, 2) {
			lock, err := l.TryLock(t.Context(), key, redlock.WithConcurrency(n))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lock.Unlock() }()
		}
	}
	seen := make(map[int]bool)
	all := ask[console.Locks](t, http.MethodGet, serveConsole(t, l)+"locks", http.StatusOK)
	for _, lock := range all.Locks {
		switch {
		case lock.Key == "several" && lock.Slot != nil && lock.Slots == 3 && lock.Fence > 0:
			seen[*lock.Slot] = true
		case lock.Key == "one" && lock.Slot == nil && lock.Slots == 0:
		default:
			t.Errorf("listed as %+v", lock)
		}
	}
	if len(seen) != 2 || all.Held != 3 {
		t.Errorf("slots %v, %d held, want two slots and 3 held", seen, all.Held)
	}
}
