package redlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestClocksOnePercentApart: where a process's clock runs 1 % slower or faster than those of all masters, a lock of which it can renew nothing has
// ended there before another process gets the key; otherwise it keeps its locks, and the masters their votes.
func TestClocksOnePercentApart(t *testing.T) {
	for _, permille := range []int{10, -10} {
		t.Run(fmt.Sprint(permille), func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				for _, s := range net.Servers {
					s.SetSpeed(permille)
				}
				own := ownNetwork(net)
				l, others := simLocker(t, net.Masters(own...)), simLocker(t, net.Masters())
				for round := range 20 {
					lock := mustLock(t, l, "key")
					time.Sleep(time.Duration(round) * simTTL / 7)
					if err := lock.Err(); err != nil {
						t.Fatalf("lost although all is well: %v", err)
					}
					for _, a := range own {
						a.Set(simnet.Weather{Requests: true})
					}
					next := mustLock(t, others, "key")
					if lock.Err() != redlock.ErrLost || next.Fence() <= lock.Fence() {
						t.Errorf("a second holder, of fence %d after %d, %v before the end of the first: %v", next.Fence(), lock.Fence(), time.Until(lock.Until()), lock.Err())
					}
					mustUnlock(t, next)
					for _, a := range own {
						a.Set(simnet.Weather{})
					}
					_ = lock.Unlock()
					time.Sleep(simTTL)
				}
				if status := others.Status(); status.Available != 3 { // those of the other have answered nothing for longer than a clock is followed
					t.Errorf("%d masters have a vote: %v", status.Available, status.Masters)
				}
			})
		})
	}
}
