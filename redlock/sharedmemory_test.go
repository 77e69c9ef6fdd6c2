package redlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSharedMemory: one master in memory serves two Lockers at once, as it would two processes, and the end of one leaves the other running.
func TestSharedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		master := memoryMaster("")
		a, b := lockerOn(t, []redlock.Master{master}), lockerOn(t, []redlock.Master{master})
		work := func(both bool) {
			var calls sync.WaitGroup
			holds := 0 // the race detector sees two holders at once
			for i := range 40 {
				l := a
				if both && i%2 == 1 {
					l = b
				}
				calls.Go(func() {
					for n := range 10 {
						lockUnlock(t, l, fmt.Sprint(i, n))
					}
					err := l.Do(context.Background(), "shared", func(context.Context, *redlock.Lock) error {
						holds++
						time.Sleep(time.Millisecond)
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			if holds != 40 {
				t.Errorf("%d holds, want 40", holds)
			}
		}
		work(true)
		mustClose(t, b)
		work(false)
	})
}
