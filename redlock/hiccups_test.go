package redlock_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSlotsAfterHiccups: masters that have all hung for a moment, twice within a minute, offer slots again as soon as they answer, although
// people are told for a while that they come and go.
func TestSlotsAfterHiccups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots, callers, hold = 3, 4, 20 * time.Millisecond
		var hungUntil, grants atomic.Int64
		began := time.Now()
		servers := farServers(3)
		way := func(m *farMaster) {
			m.there = func() time.Duration {
				return time.Millisecond/2 + max(0, time.Duration(hungUntil.Load())-time.Since(began))
			}
		}
		var stop atomic.Bool
		var work sync.WaitGroup
		var lockers []*redlock.Locker
		for range 2 {
			l := lockerOn(t, view(servers, way), redlock.WithTimeout(50*time.Millisecond), redlock.WithConcurrency(slots))
			lockers = append(lockers, l)
			for range callers {
				work.Go(func() {
					for !stop.Load() {
						lock, err := l.Lock(t.Context(), "key")
						if err != nil {
							t.Error(err)
							return
						}
						grants.Add(1)
						time.Sleep(hold)
						_ = lock.Unlock() // masters may hang
					}
				})
			}
		}
		granted := func(within time.Duration) int64 {
			before := grants.Load()
			time.Sleep(within)
			return grants.Load() - before
		}
		const second = time.Second
		time.Sleep(second)
		well := granted(2 * second)
		for range 2 {
			hungUntil.Store(int64(time.Since(began) + 300*time.Millisecond))
			time.Sleep(2 * second)
		}
		for _, l := range lockers {
			for _, m := range l.Status().Masters {
				if m.State == redlock.MasterAvailable {
					t.Errorf("%s is told to be well", m.Name)
				}
			}
		}
		if after := granted(2 * second); after < well*3/4 {
			t.Errorf("%d grants after the hiccups, %d before them", after, well)
		}
		stop.Store(true)
		work.Wait()
	})
}
