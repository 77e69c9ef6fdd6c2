package redlock_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestResultIsShared: try-locks that come while another one asks for the key get the result that it meets.
func TestResultIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const trip, calls = 20 * time.Millisecond, 100
		masters := view(farServers(3), func(m *farMaster) { m.there = after(trip) })
		counts := counted(masters)
		l := lockerOn(t, masters)
		time.Sleep(time.Second) // the first probe is over
		if err := mustLock(t, l, "key").UnlockWith([]byte("paid"), time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		start := time.Now()
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				_, err := l.TryLock(t.Context(), "key", redlock.WithRecall())
				var done *redlock.DoneError
				if !errors.As(err, &done) || string(done.Result) != "paid" {
					t.Errorf("TryLock: %v, want a *DoneError", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took > 3*trip {
			t.Errorf("%d calls took %v, want at most %v", calls, took, 3*trip)
		}
		for i, c := range counts {
			if c.acquires > 3 {
				t.Errorf("master %d got %d acquires, want at most 3", i, c.acquires)
			}
		}
	})
}
