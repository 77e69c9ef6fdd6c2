package redlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestConcurrency: over two processes there are never more holders of a key than it may have, each has a slot to itself, and nobody
// is forgotten.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	const n, calls = 3, 60
	servers := redistest.Start(t, 3)
	var held, most, done atomic.Int64
	var slots [n]atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		locker, err := redlock.Open([]string{servers[0].URL(), servers[1].URL(), servers[2].URL()}, redlock.WithConcurrency(n), redlock.WithRestartGuard(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close() })
		for range calls {
			all.Go(func() {
				err := locker.Do(t.Context(), "k", func(ctx context.Context, lock *redlock.Lock) error {
					for now := held.Add(1); ; {
						if seen := most.Load(); seen >= now || most.CompareAndSwap(seen, now) {
							break
						}
					}
					if slots[lock.Slot()].Add(1) != 1 {
						t.Errorf("slot %d has two holders", lock.Slot())
					}
					time.Sleep(2 * time.Millisecond)
					slots[lock.Slot()].Add(-1)
					held.Add(-1)
					done.Add(1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if most.Load() != n || done.Load() != 2*calls {
		t.Errorf("%d were done, at most %d at once; want %d, %d", done.Load(), most.Load(), 2*calls, n)
	}
}
