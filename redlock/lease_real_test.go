package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestLongHold holds a lock for several TTLs while masters lose it, one after the other.
func TestLongHold(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	l, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), redlock.WithTimeout(ttl/4)) // a master that has forgotten is excluded for the max TTL
	lock := mustLock(t, l, "key")
	waiting, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan *redlock.Lock, 1)
	second := newLocker(t, redistest.URLs(servers), redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl), redlock.WithTimeout(ttl/4))
	go func() {
		lock, _ := second.Lock(waiting, "key")
		got <- lock
	}()
	everywhere := func() bool {
		token := holderOn(servers[0], "key")
		return token != "" && holderOn(servers[1], "key") == token && holderOn(servers[2], "key") == token
	}
	lose := func(what string, lose func()) {
		eventually(t, bound, "all masters hold the key before "+what, everywhere)
		lose()
		eventually(t, bound, "the key is filled in again after "+what, everywhere)
	}
	start := time.Now()
	lose("a restart", func() { servers[0].Kill(); servers[0].Restart() })
	lose("FLUSHALL", func() {
		if err := servers[1].Client().FlushAll(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-got:
		t.Fatal("another has got the lock")
	case <-lock.Context().Done():
		t.Fatalf("lost after %v: %v", time.Since(start), lock.Err())
	case <-time.After(3*ttl - time.Since(start)):
	}
	eventually(t, bound, "most of a TTL is left", func() bool { left := time.Until(lock.Until()); return left > ttl/3 && left <= ttl })
	mustUnlock(t, lock)
	select {
	case next := <-got:
		if next == nil || next.Fence() <= lock.Fence() {
			t.Fatalf("the waiter has %v after fence %d", next, lock.Fence())
		}
		mustUnlock(t, next)
	case <-time.After(bound):
		t.Error("the waiter doesn't get the lock that is free now")
	}
	redistest.RequireNoKeys(t, servers)
}

// TestKeyTakenIsNoticed takes the key away on a majority, as nothing but a mistake can: the lock is
// lost at the next renewal, at a third of the TTL, not at its end. On a minority it doesn't matter.
func TestKeyTakenIsNoticed(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]int{"by a minority": 1, "by a majority": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 12 * time.Second
			var d diary
			l, servers := onServers(t, 3, redlock.WithTTL(ttl), d.option())
			lock := mustLock(t, l, "key")
			for _, s := range servers[:takes] {
				steal(t, s, "key", ttl)
			}
			lost := takes == 2
			select {
			case <-lock.Context().Done():
				if cause := context.Cause(lock.Context()); !lost || cause != redlock.ErrLost {
					t.Errorf("ended by %v, lost should be %v", cause, lost)
				}
			case <-time.After(ttl * 3 / 4):
				if lost {
					t.Error("not lost within 3/4 of the TTL")
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
	}
}

// TestLostLeaseIsTold hangs all masters, so that only the holder's own clock can end the lock.
func TestLostLeaseIsTold(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	var d diary
	var log logBook
	l, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/10), d.option(), log.option())
	lockUnlock(t, l, "warm up")
	lock := mustLock(t, l, "key")
	had := time.Now()
	for _, s := range servers {
		s.Pause()
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
	for _, s := range servers {
		s.Resume()
	}
	redistest.RequireNoKeys(t, servers)
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
}

// TestRenewalsAreObserved: one by one, whether a quorum has extended the lease.
func TestRenewalsAreObserved(t *testing.T) {
	t.Parallel()
	const ttl = 9 * time.Second
	var d diary
	l, _ := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/4), d.option())
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
}

func TestRenewalStopsAtUnlock(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	l, servers := onServers(t, 3, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/4))
	lock := mustLock(t, l, "key")
	eventually(t, bound, "two renewals", func() bool { return extends(servers[0]) >= 2 })
	unlocked(t, lock)
	redistest.RequireNoKeys(t, servers)
	before := make([]int, len(servers))
	for i, s := range servers {
		before[i] = extends(s)
	}
	time.Sleep(ttl)
	for i, s := range servers {
		if n := extends(s); n != before[i] {
			t.Errorf("master %d has done %d extends in a TTL after the release", i, n-before[i])
		}
	}
}

// TestUncontendedCost counts commands: without contention one acquire and one release on each master.
func TestUncontendedCost(t *testing.T) {
	const locks = 200
	for name, down := range map[string]int{"all up": 0, "one down": 1} {
		t.Run(name, func(t *testing.T) {
			l, servers := onServers(t, 3)
			lockUnlock(t, l, "key") // the scripts get known, and the clocks
			for _, s := range servers[:down] {
				s.Kill()
			}
			lockUnlock(t, l, "key")
			up := servers[down:]
			redistest.RequireNoKeys(t, up)
			eventually(t, 3*bound, "a round without more commands", func() bool { // on a busy machine, some fences have to be raised
				before, extended, beats := make([]int, len(up)), make([]int, len(up)), make([]int, len(up)) // beats extend keys, too
				for i, s := range up {
					before[i], extended[i], beats[i] = commands(s), extends(s), s.Calls("zadd")
				}
				for range locks {
					lockUnlock(t, l, "key")
				}
				redistest.RequireNoKeys(t, up)
				few := true
				for i, s := range up {
					all, extends := commands(s)-before[i]-(s.Calls("zadd")-beats[i]), extends(s)-extended[i]
					t.Logf("master %d got %d commands for %d locks, %d of them extends", i, all, locks, extends)
					few = few && all <= 2*locks*101/100 && extends <= locks/100
				}
				return few
			})
		})
	}
}
