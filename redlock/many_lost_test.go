package redlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestManyLost: when 10,000 leases are lost at once, each context ends once its lease is over, each loss is told of or counted as
// dropped, and each key is free for the next one.
func TestManyLost(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const takers = 50
		leases := 10_000
		if redistest.Few() {
			leases /= 5
		}
		var lost atomic.Int64
		l := simLocker(t, net.Masters(), redlock.WithObserver(redlock.Observer{LeaseLost: func(error) { lost.Add(1) }}))
		each := func(f func(key string)) {
			var workers sync.WaitGroup
			for worker := range takers {
				workers.Go(func() {
					for i := worker; i < leases && !t.Failed(); i += takers {
						f(fmt.Sprint(i))
					}
				})
			}
			workers.Wait()
		}
		var ends sync.WaitGroup
		each(func(key string) {
			lock, err := l.Lock(t.Context(), key)
			if err != nil {
				t.Errorf("lock: %v", err)
				return
			}
			work, cancel := lock.WithContext(context.Background())
			ends.Add(1)
			context.AfterFunc(work, func() {
				defer ends.Done()
				defer cancel()
				if late := time.Since(lock.Until()); context.Cause(work) != redlock.ErrLost || late < 0 || late > time.Millisecond {
					t.Errorf("the work has ended by %v, %v after its lease", context.Cause(work), late)
				}
			})
		})
		for _, s := range net.Servers {
			s.Hang()
		}
		ends.Wait()
		for _, s := range net.Servers {
			s.Resume()
		}
		each(func(key string) {
			lock, err := l.Lock(t.Context(), key, redlock.WithWait(bound))
			if err == nil {
				mustUnlock(t, lock)
			} else {
				t.Errorf("the next lock on the key: %v", err)
			}
		})
		synctest.Wait()
		if n := lost.Load(); n+int64(l.Status().DroppedEvents) != int64(leases) {
			t.Errorf("%d losses of %d leases, and %d that were dropped", n, leases, l.Status().DroppedEvents)
		}
		net.RequireNoKeys(t)
	})
}
