package redlock_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// countingMaster counts the round trips in which leases are renewed, and the extends in them.
type countingMaster struct {
	redlock.Stepwise
	trips, extends atomic.Int64
}

func (m *countingMaster) Do(cmds []*protocol.Command) {
	m.Stepwise.Do(cmds)
	extends := int64(0)
	for _, cmd := range cmds {
		if cmd.Op == protocol.OpExtend {
			extends++
		}
	}
	if extends > 0 {
		m.trips.Add(1)
		m.extends.Add(extends)
	}
}

// inBubble counts the goroutines in virtual time, and none that other tests have left.
func inBubble() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "synctest bubble")
}

// TestManyLeases holds 10,000 locks in one process, with no more goroutines than one lock needs, and one round trip
// to a master for more than 50 renewals.
func TestManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			takers = 50
			leeway = 5 // goroutines that a round trip may have
		)
		leases, ttl := 10_000, 12*time.Second
		if redistest.Few() {
			leases = leases / 5
		}
		perTrip := int64(min(leases/100, 50)) // a batch has at most 64, so that other commands get past
		servers := farServers(3)
		var counts []*countingMaster
		var masters []redlock.Master
		for _, m := range view(servers, func(m *farMaster) { m.there, m.back = after(100*time.Microsecond), after(100*time.Microsecond) }) {
			counts = append(counts, &countingMaster{Stepwise: m.Impl()})
			masters = append(masters, redlock.MasterOf(counts[len(counts)-1]))
		}
		var d diary
		l := lockerOn(t, masters, redlock.WithTTL(ttl), d.option())
		locks := make([]*redlock.Lock, leases)
		locks[0] = mustLock(t, l, "0")
		synctest.Wait()
		goroutines := inBubble()
		each := func(f func(i int)) {
			var workers sync.WaitGroup
			for worker := range takers {
				workers.Go(func() {
					for i := worker; i < leases && !t.Failed(); i += takers {
						f(i)
					}
				})
			}
			workers.Wait()
		}
		start := time.Now()
		each(func(i int) {
			if i == 0 {
				return
			}
			time.Sleep(rand.N(100 * time.Millisecond))
			lock, err := l.Lock(t.Context(), fmt.Sprint(i))
			if err != nil {
				t.Error(err)
			}
			locks[i] = lock
		})
		if t.Failed() {
			return
		}
		t.Logf("taken in %v", time.Since(start))

		before := make([][2]int64, len(counts))
		for i, m := range counts {
			before[i] = [2]int64{m.trips.Load(), m.extends.Load()}
		}
		most := 0
		for range 100 {
			most = max(most, inBubble())
			time.Sleep(ttl / 100)
		}
		for i, m := range counts {
			trips, extends := m.trips.Load()-before[i][0], m.extends.Load()-before[i][1]
			t.Logf("master %d: %d extends in %d round trips, %.0f each", i, extends, trips, float64(extends)/float64(trips))
			if trips*perTrip > extends {
				t.Errorf("master %d: %d round trips for %d extends", i, trips, extends)
			}
			if rounds := float64(extends) / float64(leases); rounds < 2.9 || rounds > 3.1 {
				t.Errorf("master %d: %.2f renewals of each lease in a TTL, want 3", i, rounds)
			}
		}
		t.Logf("%d goroutines, %d with one lease", most, goroutines)
		if most > goroutines+leeway {
			t.Errorf("%d goroutines with %d leases, %d with one", most, leases, goroutines)
		}
		if t.Failed() {
			return
		}
		each(func(i int) {
			if err := locks[i].Unlock(); err != nil {
				t.Errorf("unlock %d: %v", i, err)
			}
		})
		if lost := d.find("lost", "", nil); len(lost) > 0 {
			t.Errorf("%d leases lost", len(lost))
		}
		time.Sleep(time.Second) // Unlock waits for a majority only
		for i := range leases {
			requireFree(t, servers, fmt.Sprint(i))
		}
	})
}
