package redlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestManyLost: when 10,000 leases are lost at once, each context ends once its lease is over, each loss is told of or counted as
// dropped, and each key is free for the next one.
func TestManyLost(t *testing.T) {
	const takers = 50
	leases, ttl := 10_000, 6*time.Second
	if redistest.Few() {
		leases, ttl = leases/5, ttl/2
	}
	var lost atomic.Int64
	l, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/2), redlock.WithObserver(redlock.Observer{LeaseLost: func(error) { lost.Add(1) }}))
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
			if cause := context.Cause(work); cause != redlock.ErrLost || time.Now().Before(lock.Until()) {
				t.Errorf("the work has ended by %v, %v before its lease", cause, time.Until(lock.Until()))
			}
		})
	})
	for _, s := range servers {
		s.Pause()
	}
	ends.Wait()
	for _, s := range servers {
		s.Resume()
	}
	each(func(key string) {
		lock, err := l.Lock(t.Context(), key, redlock.WithWait(bound))
		if err == nil {
			_ = unlocked(t, lock)
		} else {
			t.Errorf("the next lock on the key: %v", err)
		}
	})
	eventually(t, bound, "all losses are told of or counted", func() bool {
		return lost.Load()+int64(l.Status().DroppedEvents) >= int64(leases)
	})
	if n := lost.Load(); n > int64(leases) {
		t.Errorf("%d losses of %d leases", n, leases)
	}
}
