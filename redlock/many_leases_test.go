package redlock_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// countingMaster counts the round trips in which leases are renewed, and the extends in them.
type countingMaster struct {
	redlock.Stepwise
	trips, extends, granted atomic.Int64
}

func (m *countingMaster) Do(cmds []*protocol.Command) {
	m.Stepwise.Do(cmds)
	extends := int64(0)
	for _, cmd := range cmds {
		if cmd.Op == protocol.OpExtend {
			extends++
			if cmd.Reply.Status == protocol.StatusGranted {
				m.granted.Add(1)
			}
		}
	}
	if extends > 0 {
		m.trips.Add(1)
		m.extends.Add(extends)
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestManyLeases holds 10,000 locks in one process, with no more goroutines than one lock needs, and one round trip
// to a master for more than 50 renewals.
func TestManyLeases(t *testing.T) {
	const (
		takers = 50
		leeway = 5 // goroutines that the runtime or another test's end may have
	)
	leases, ttl := 10_000, 12*time.Second
	if redistest.Few() { // a busy machine would need longer than the TTL to take or renew so many
		leases = leases / 5
	}
	perTrip := int64(min(leases/100, 50)) // a batch has at most 64, so that other commands get past
	servers := redistest.Start(t, 3)
	dialed, err := redlock.Dial(redistest.URLs(servers)...)
	if err != nil {
		t.Fatal(err)
	}
	var masters []redlock.Master
	var counts []*countingMaster
	for _, m := range dialed {
		counts = append(counts, &countingMaster{Stepwise: m.Impl()})
		masters = append(masters, redlock.MasterOf(counts[len(counts)-1]))
	}
	var d diary
	l := lockerOn(t, masters, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/2), d.option())
	locks := make([]*redlock.Lock, leases)
	locks[0] = mustLock(t, l, "0")
	goroutines := runtime.NumGoroutine()
	start := time.Now()
	var workers sync.WaitGroup
	for worker := range takers {
		workers.Go(func() {
			for i := worker; i < leases; i += takers {
				if i == 0 {
					continue
				}
				lock, err := l.Lock(t.Context(), fmt.Sprint(i))
				if err != nil {
					t.Error(err)
					return
				}
				locks[i] = lock
			}
		})
	}
	workers.Wait()
	if t.Failed() {
		return
	}
	t.Logf("taken in %v", time.Since(start))

	start = time.Now()
	cpu := cpuTime(t)
	before := make([][2]int64, len(counts))
	for i, m := range counts {
		before[i] = [2]int64{m.trips.Load(), m.extends.Load()}
	}
	most := 0
	for time.Since(start) < ttl {
		most = max(most, runtime.NumGoroutine())
		time.Sleep(ttl / 100)
	}
	cpu = cpuTime(t) - cpu
	took := time.Since(start)
	for i, m := range counts {
		trips, extends := m.trips.Load()-before[i][0], m.extends.Load()-before[i][1]
		t.Logf("master %d: %d extends in %d round trips, %.0f each", i, extends, trips, float64(extends)/float64(trips))
		if trips*perTrip > extends {
			t.Errorf("master %d: %d round trips for %d extends", i, trips, extends)
		}
		if rounds := float64(extends) / float64(leases); rounds < 1 || rounds > 4.5 {
			t.Errorf("master %d: %.1f renewals of each lease in a TTL, want 3", i, rounds)
		}
	}
	t.Logf("%.0f ms of CPU a second, %d goroutines, %d with one lease", 1000*cpu.Seconds()/took.Seconds(), most, goroutines)
	if most > goroutines+leeway {
		t.Errorf("%d goroutines with %d leases, %d with one", most, leases, goroutines)
	}
	for i, lock := range locks {
		if err := lock.Err(); err != nil {
			t.Fatalf("lock %d: %v", i, err)
		}
	}
	if lost := d.find("lost", "", nil); len(lost) > 0 {
		t.Errorf("%d leases lost", len(lost))
	}
	for worker := range takers {
		workers.Go(func() {
			for i := worker; i < leases; i += takers {
				if err := locks[i].Unlock(); err != nil {
					t.Errorf("unlock %d: %v", i, err)
				}
			}
		})
	}
	workers.Wait()
	redistest.RequireNoKeys(t, servers)
}
