package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestLongHold holds a lock for several TTLs while masters lose it, one after the other.
func TestLongHold(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l, second := simLocker(t, net.Masters()), simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		next := make(chan *redlock.Lock, 1)
		go func() { next <- mustLock(t, second, "key") }()
		everywhere := func() bool {
			token := net.Servers[0].Holder("key")
			return token != "" && net.Servers[1].Holder("key") == token && net.Servers[2].Holder("key") == token
		}
		for _, lose := range []func(){net.Servers[0].Reboot, net.Servers[1].Flush} {
			eventually(t, bound, "all masters hold the key before it is lost", everywhere)
			lose()
			eventually(t, bound, "the key is filled in again", everywhere)
		}
		stays(t, 3*simTTL, "held by the first", func() bool { return lock.Err() == nil && len(next) == 0 })
		if left := time.Until(lock.Until()); left < simTTL/2 || left > simTTL {
			t.Errorf("%v are left", left)
		}
		mustUnlock(t, lock)
		if after := within(t, next); after.Fence() <= lock.Fence() {
			t.Errorf("fence %d after %d", after.Fence(), lock.Fence())
		} else {
			mustUnlock(t, after)
		}
		net.RequireNoKeys(t)
	})
}

// TestKeyTakenIsNoticed takes the key away on a majority, as nothing but a mistake can: the lock is
// lost at the next renewal, at a third of the TTL, not at its end. On a minority it doesn't matter.
func TestKeyTakenIsNoticed(t *testing.T) {
	for name, takes := range map[string]int{"by a minority": 1, "by a majority": 2} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var d diary
				l := simLocker(t, net.Masters(), d.option())
				lock := mustLock(t, l, "key")
				onEach(t, net, 1) // an acquire that is under way would take it again
				for _, s := range net.Servers[:takes] {
					s.Give("key", "another", simTTL)
				}
				lost := takes == 2
				select {
				case <-lock.Context().Done():
					if cause := context.Cause(lock.Context()); !lost || cause != redlock.ErrLost {
						t.Errorf("ended by %v, lost should be %v", cause, lost)
					}
				case <-time.After(simTTL / 2):
					if lost {
						t.Error("not lost within half of the TTL")
					}
				}
				if lost {
					eventually(t, bound, "the observer knows", func() bool { return len(d.find("lost", "", redlock.ErrLost)) == 1 })
				} else if n := len(d.find("lost", "", nil)); n > 0 {
					t.Errorf("%d leases lost, by the observer", n)
				}
				if err := lock.Unlock(); lost != errors.Is(err, redlock.ErrExpired) {
					t.Errorf("Unlock: %v", err)
				}
			})
		})
	}
}

// TestLostLeaseIsTold hangs all masters, so that only the holder's own clock can end the lock.
func TestLostLeaseIsTold(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const ttl = 9 * time.Second
		var d diary
		var log logBook
		l := simLocker(t, net.Masters(), redlock.WithTTL(ttl), d.option(), log.option())
		lockUnlock(t, l, "warm up")
		lock := mustLock(t, l, "key")
		had := time.Now()
		for _, s := range net.Servers {
			s.Hang()
		}
		until := lock.Until()
		cause := ended(t, lock.Context())
		end := time.Now()
		if cause != redlock.ErrLost || lock.Err() != redlock.ErrLost {
			t.Errorf("cause %v, Err %v, want ErrLost", cause, lock.Err())
		}
		if until != lock.Until() {
			t.Error("hung masters have renewed the lease")
		}
		if end.Before(until) {
			t.Errorf("ended %v before the end of the validity", until.Sub(end))
		}
		if until.After(had.Add(ttl)) {
			t.Error("valid for longer than the masters can be sure of")
		}
		if err := lock.Unlock(); !errors.Is(err, redlock.ErrExpired) {
			t.Errorf("Unlock: %v, want ErrExpired", err)
		}
		for _, s := range net.Servers {
			s.Resume()
		}
		net.RequireNoKeys(t)
		mustClose(t, l) // then all is told
		if lines := log.lines("level=WARN", "lease lost"); len(lines) != 1 {
			t.Errorf("log: %q, want one line", lines)
		}
		if lost := d.find("lost", "", nil); len(lost) != 1 || lost[0].err != redlock.ErrLost {
			t.Errorf("observer: %v, want one lost lease", lost)
		}
		if failed := d.find("renewed", "", redlock.ErrNoQuorum); len(failed) == 0 || len(d.find("renewed", "", nil)) != len(failed) {
			t.Errorf("observer: %v, want renewals without a quorum, and no others", d.find("renewed", "", nil))
		}
	})
}

// TestRenewalsAreObserved: one by one, whether a quorum has extended the lease.
func TestRenewalsAreObserved(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const ttl = 9 * time.Second
		var d diary
		l := simLocker(t, net.Masters(), redlock.WithTTL(ttl), d.option())
		lock := mustLock(t, l, "key")
		first := lock.Until()
		eventually(t, bound, "two renewals", func() bool { return len(d.find("renewed", "", nil)) >= 2 })
		for _, e := range d.find("renewed", "", nil) {
			if e.err != nil {
				t.Errorf("renewed: %v", e.err)
			}
		}
		if !lock.Until().After(first) {
			t.Error("the lease ends as early as before")
		}
		mustUnlock(t, lock)
	})
}

func TestRenewalStopsAtUnlock(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const ttl = 4 * time.Second
		l := simLocker(t, net.Masters(), redlock.WithTTL(ttl))
		lock := mustLock(t, l, "key")
		extends := func(s *simnet.Server) int { return s.Calls(simnet.Extend) }
		eventually(t, bound, "two renewals", func() bool { return extends(net.Servers[0]) >= 2 })
		mustUnlock(t, lock)
		net.RequireNoKeys(t)
		before := make([]int, len(net.Servers))
		for i, s := range net.Servers {
			before[i] = extends(s)
		}
		time.Sleep(ttl)
		for i, s := range net.Servers {
			if n := extends(s); n != before[i] {
				t.Errorf("master %d has got %d extends in a TTL after the release", i, n-before[i])
			}
		}
	})
}

// TestUncontendedCost counts commands: without contention one acquire and one release on each master.
func TestUncontendedCost(t *testing.T) {
	const locks = 200
	for name, down := range map[string]int{"all up": 0, "one down": 1} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				l := simLocker(t, net.Masters())
				lockUnlock(t, l, "key")
				for _, s := range net.Servers[:down] {
					s.Kill()
				}
				lockUnlock(t, l, "key")
				up := net.Servers[down:]
				net.RequireNoKeys(t)
				calls := func(op simnet.Op) (n []int) {
					for _, s := range up {
						n = append(n, s.Calls(op))
					}
					return n
				}
				acquires, releases, extends := calls(simnet.Acquire), calls(simnet.Release), calls(simnet.Extend)
				for range locks {
					lockUnlock(t, l, "key")
				}
				net.RequireNoKeys(t)
				for i, s := range up {
					if a, r, e := s.Calls(simnet.Acquire)-acquires[i], s.Calls(simnet.Release)-releases[i], s.Calls(simnet.Extend)-extends[i]; a != locks || r != locks || e > 0 {
						t.Errorf("%s got %d acquires, %d releases and %d extends for %d locks", s, a, r, e, locks)
					}
				}
			})
		})
	}
}
