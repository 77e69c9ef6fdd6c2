package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// farMaster is a master behind a network: a view of a server that several Lockers may share. Each
// Locker has its own view.
type farMaster struct {
	*farServer
	there, back func() time.Duration // how long a batch is under way; nil for no time
	lost        func() bool          // says whether the network loses the batch; nil for never
	unheard     func() bool          // says whether it loses the replies to one that the server has executed; nil for never
	refuses     func() bool          // says whether no connection can be made; nil for never
	sees        func(cmds []*protocol.Command)
}

// farServer is a memory master whose data a test may change.
type farServer struct {
	mu sync.Mutex
	redlock.Stepwise
}

var errCut = errors.New("connection is cut")

func (m *farMaster) Do(cmds []*protocol.Command) {
	if m.lost != nil && m.lost() {
		for _, cmd := range cmds {
			cmd.Reply.Err = errCut
		}
		return
	}
	if m.there != nil {
		time.Sleep(m.there())
	}
	if m.sees != nil {
		m.sees(cmds)
	}
	m.mu.Lock()
	m.Stepwise.Do(cmds)
	m.mu.Unlock()
	if m.back != nil {
		time.Sleep(m.back())
	}
	if m.unheard != nil && m.unheard() {
		for _, cmd := range cmds {
			cmd.Reply = protocol.Reply{Err: errCut}
		}
	}
}

func (m *farMaster) Refuses() bool { return m.refuses != nil && m.refuses() }

func farServers(n int) []*farServer {
	servers := make([]*farServer, n)
	for i := range servers {
		servers[i] = &farServer{Stepwise: memory.New(fmt.Sprint(i), time.Now)}
	}
	return servers
}

// view returns a Locker's own view of the servers.
func view(servers []*farServer, way func(m *farMaster)) []redlock.Master {
	masters := make([]redlock.Master, len(servers))
	for i, s := range servers {
		m := &farMaster{farServer: s}
		way(m)
		masters[i] = redlock.MasterOf(m)
	}
	return masters
}

func after(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// delay is a time that a test changes while masters read it.
type delay struct{ ns atomic.Int64 }

func (d *delay) get() time.Duration  { return time.Duration(d.ns.Load()) }
func (d *delay) set(t time.Duration) { d.ns.Store(int64(t)) }

// TestValidity: the validity is counted from before the masters were asked, and shortened by the drift.
func TestValidity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, drift = 10 * time.Second, 102 * time.Millisecond // ttl/100 + 2 ms
		var cut atomic.Bool
		l := lockerOn(t, view(farServers(3), func(m *farMaster) {
			m.there, m.back, m.lost = after(100*time.Millisecond), after(200*time.Millisecond), cut.Load
		}))
		time.Sleep(time.Second) // the first connect is over
		start := time.Now()
		lock := mustLock(t, l, "key", redlock.WithTTL(ttl))
		if took := time.Since(start); took != 300*time.Millisecond {
			t.Errorf("took %v, want one round trip of 300ms", took)
		}
		if validity := lock.Until().Sub(start); validity != ttl-drift {
			t.Errorf("valid for %v from the start, want %v", validity, ttl-drift)
		}
		cut.Store(true) // nothing is renewed
		time.Sleep(time.Until(lock.Until()) - 1)
		synctest.Wait()
		if err := lock.Err(); err != nil {
			t.Errorf("just before the end of validity: %v", err)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if err := lock.Err(); err != redlock.ErrLost {
			t.Errorf("at the end of validity: %v, want ErrLost", err)
		}
		if err := lock.Unlock(); !errors.Is(err, redlock.ErrExpired) || !errors.Is(err, redlock.ErrLost) {
			t.Errorf("unlock: %v, want ErrExpired and ErrLost", err)
		}
	})
}

// TestSlowReplies: while the masters' replies take any time below a third of the TTL, a lease is kept, and is asked for three times in a
// TTL, not more often.
func TestSlowReplies(t *testing.T) {
	for _, lag := range []time.Duration{0, 1400 * time.Millisecond, 2 * time.Second, 3 * time.Second, 3300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			const ttl, rounds = 10 * time.Second, 30
			var late delay
			var extends atomic.Int64
			l := lockerOn(t, view(farServers(3), func(m *farMaster) {
				m.back = late.get
				m.sees = func(cmds []*protocol.Command) {
					for _, cmd := range cmds {
						if cmd.Op == protocol.OpExtend {
							extends.Add(1)
						}
					}
				}
			}))
			lock := mustLock(t, l, "key", redlock.WithTTL(ttl))
			late.set(lag)
			time.Sleep(rounds * ttl / 3)
			synctest.Wait()
			if err := lock.Err(); err != nil {
				t.Errorf("%v late: %v", lag, err)
			}
			if n := extends.Load(); n > 3*(rounds+rounds/10) { // rounds begin on a grid of a thirtieth of the TTL, up to a tenth early
				t.Errorf("%v late: %d renewals at 3 masters in %d thirds of the TTL", lag, n, rounds)
			}
			late.set(0)
			_ = lock.Unlock()
		})
	}
}

// TestLateGrants: a quorum that has granted after the end of validity is no lock.
func TestLateGrants(t *testing.T) {
	for _, c := range []struct {
		trip time.Duration
		want bool
	}{
		{trip: 90 * time.Millisecond, want: true},
		{trip: 98 * time.Millisecond, want: false}, // the validity is 100 ms less 3 ms
	} {
		t.Run(c.trip.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// the time-out adapts to slow masters, up to four times its setting: beyond the TTL
				l := lockerOn(t, view(farServers(3), func(m *farMaster) { m.back = after(c.trip) }),
					redlock.WithTimeout(50*time.Millisecond), redlock.WithTTL(100*time.Millisecond))
				time.Sleep(time.Second)
				lock, err := l.TryLock(t.Context(), "key")
				if got := err == nil; got != c.want {
					t.Errorf("TryLock: %v, want a lock: %v", err, c.want)
				}
				if !c.want && !errors.Is(err, redlock.ErrNoQuorum) {
					t.Errorf("TryLock: %v, want ErrNoQuorum", err)
				}
				if lock != nil {
					_ = lock.Unlock()
				}
			})
		})
	}
}

// TestLockEndsWithItsContext, not at the end of a pause between attempts.
func TestLockEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, []string{"memory://"})
		lock := mustLock(t, l, "key")
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			if _, err := l.Lock(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v, want DeadlineExceeded", err)
			}
			if took := time.Since(start); took != time.Second {
				t.Errorf("Lock returned after %v, want the context's 1s", took)
			}
			cancel()
		}
		mustUnlock(t, lock)
	})
}

// TestHungMajorityIsKnown: only the first attempt waits for the timeout.
func TestHungMajorityIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Second
		var hang delay
		servers := farServers(3)
		l := lockerOn(t, view(servers, func(m *farMaster) {
			if m.farServer != servers[0] {
				m.there = hang.get
			}
		}), redlock.WithTimeout(timeout))
		synctest.Wait()
		hang.set(time.Minute)
		for i := range 3 {
			start := time.Now()
			if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) {
				t.Errorf("TryLock %d: %v, want ErrNoQuorum", i, err)
			}
			want := time.Duration(0)
			if i == 0 {
				want = timeout
			}
			if took := time.Since(start); took != want {
				t.Errorf("TryLock %d took %v, want %v", i, took, want)
			}
			time.Sleep(time.Nanosecond) // the time-out is past, not only reached
		}
		synctest.Wait()
		hang.set(0)
		time.Sleep(time.Minute)
		lockUnlock(t, l, "key")
	})
}

// TestSplitVotes: three contenders that each get one master of three first. Without tries after
// split votes, all fail.
func TestSplitVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rounds, contenders = 50, 3
		servers := farServers(contenders)
		lockers := make([]*redlock.Locker, contenders)
		for i := range lockers {
			lockers[i] = lockerOn(t, view(servers, func(m *farMaster) {
				m.there, m.back = after(time.Millisecond), after(time.Millisecond)
				if m.farServer == servers[i] {
					m.there, m.back = after(500*time.Microsecond), after(500*time.Microsecond)
				}
			}))
		}
		unresolved := 0
		for round := range rounds {
			time.Sleep(time.Second)
			results := make(chan error, contenders)
			key := fmt.Sprint(round)
			for _, l := range lockers {
				go func() {
					_, err := l.TryLock(t.Context(), key)
					results <- err
				}()
			}
			winners := 0
			for range lockers {
				switch err := <-results; {
				case err == nil:
					winners++
				case !errors.Is(err, redlock.ErrHeld):
					t.Errorf("split votes: %v, want ErrHeld", err)
				}
			}
			if winners > 1 {
				t.Fatalf("round %d: %d contenders hold the lock", round, winners)
			}
			if winners == 0 {
				unresolved++
			}
		}
		if unresolved > rounds/5 {
			t.Errorf("nobody won %d of %d rounds", unresolved, rounds)
		}
	})
}

// TestLossyNetwork: with batches lost and delayed at random, no two hold the lock at once, and everybody gets it,
// whatever the seed.
func TestLossyNetwork(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			const ttl = 2 * time.Second
			servers := farServers(3)
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, seed))
			upTo := func(n time.Duration) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(random.Int64N(int64(n)))
			}
			var holderUntil time.Time // of whoever holds the lock
			var group sync.WaitGroup
			for range 3 {
				l := lockerOn(t, view(servers, func(m *farMaster) {
					delay := func() time.Duration { return upTo(40 * time.Millisecond) }
					m.there, m.back = delay, delay
					m.lost = func() bool { return upTo(100) < 10 }
				}), redlock.WithTimeout(50*time.Millisecond), redlock.WithTTL(ttl))
				group.Go(func() {
					for range 5 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
						lock, err := l.Lock(ctx, "key")
						cancel()
						if err != nil {
							t.Errorf("seed %d: %v", seed, err)
							return
						}
						mu.Lock()
						if time.Now().Before(holderUntil) {
							t.Errorf("seed %d: two hold the lock", seed)
						}
						holderUntil = lock.Until()
						mu.Unlock()
						time.Sleep(upTo(ttl / 2))
						if lock.Err() == nil {
							mu.Lock()
							holderUntil = time.Time{}
							mu.Unlock()
						}
						_ = lock.Unlock()
					}
				})
			}
			group.Wait()
		})
	}
}

// TestLongHoldIsTold: a lock that was dropped without Unlock is in the log after an hour, once; one with a max hold isn't.
func TestLongHoldIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logBook)
		l := newLocker(t, []string{"memory://"}, log.option())
		mustLock(t, l, "dropped", redlock.WithLabel("job"))
		mustLock(t, l, "bounded", redlock.WithMaxHold(2*time.Hour))
		const line = "a lock has been held for an hour"
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if len(log.lines(line)) != 0 {
			t.Error("told too early")
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if told := log.lines(line); len(told) != 1 || !strings.Contains(told[0], "rule=job") {
			t.Errorf("%q, want one line with the label", told)
		}
	})
}
