package redlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// forgotten makes the situation that the guard is for: a holder has locked two of three masters, its quorum, and
// one of these restarts empty. Together with the third it would be a quorum for another holder.
func forgotten(t *testing.T, servers []*redistest.Server, opts ...redlock.Option) (lock *redlock.Lock, others *redlock.Locker) {
	t.Helper()
	first := newLocker(t, append(redistest.URLs(servers[:2]), dead(t)), opts...)
	lock = mustLock(t, first, "key")
	for _, s := range servers[:2] {
		if holderOn(s, "key") == "" {
			t.Fatal("a master of the quorum doesn't hold the key")
		}
	}
	servers[1].Kill()
	servers[1].Restart()
	return lock, newLocker(t, redistest.URLs(servers), opts...)
}

// TestRestartForgetsLocks shows the hole that the guard closes.
func TestRestartForgetsLocks(t *testing.T) {
	servers := redistest.Start(t, 3)
	lock, others := forgotten(t, servers, redlock.WithRestartGuard(0), redlock.WithTTL(10*time.Minute), redlock.WithMaxTTL(10*time.Minute)) // nothing is renewed
	var second *redlock.Lock
	eventually(t, bound, "a process that starts may lock", func() bool { // once the other has noticed the restart
		second = tryLock(t, others, "key")
		return second != nil
	})
	if lock.Err() != nil {
		t.Fatalf("second lock %v, first one %v: want two holders at once", second, lock.Err())
	}
	if second.Fence() <= lock.Fence() {
		t.Logf("fence %d after %d: not even the fence helps", second.Fence(), lock.Fence())
	}
}

func TestRestartGuard(t *testing.T) {
	t.Parallel()
	const (
		ttl   = 8 * time.Second
		guard = ttl + time.Second
	)
	var d diary
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, guard)
	restarted := time.Now() // at the earliest
	lock, others := forgotten(t, servers, redlock.WithTTL(ttl), redlock.WithTimeout(ttl/4), redlock.WithMaxTTL(ttl),
		redlock.WithRestartGuard(guard), d.option())
	var second *redlock.Lock
	tries, left := 0, time.Until(lock.Until())
	eventually(t, bound, "the lock is free again", func() bool {
		valid := lock.Err() == nil // before the other asks
		second = tryLock(t, others, "key")
		if second != nil && valid && time.Now().Before(lock.Until()) {
			t.Fatalf("a second holder after %v, the first is valid for %v", time.Since(restarted), time.Until(lock.Until()))
		}
		tries++
		return second != nil
	})
	if tries < 10 && left > ttl/2 {
		t.Errorf("only %d tries, in %v", tries, time.Since(restarted))
	}
	if n := commands(servers[1]); n > 0 && time.Since(restarted) < ttl {
		t.Errorf("the restarted master got %d commands in its guard", n)
	}
	if lock.Err() != redlock.ErrLost {
		t.Errorf("first lock: %v, want ErrLost", lock.Err())
	}
	if second.Fence() <= lock.Fence() {
		t.Errorf("fence %d after %d", second.Fence(), lock.Fence())
	}
	_ = unlocked(t, second)
	eventually(t, bound, "the restarted master votes again", func() bool {
		lockUnlock(t, others, "key")
		return !d.upAfter(servers[1].URL(), redlock.ErrRestarted).IsZero()
	})
	if up := d.upAfter(servers[1].URL(), redlock.ErrRestarted); up.Before(restarted.Add(ttl)) {
		t.Errorf("the restarted master votes after %v, want not before the max TTL", up.Sub(restarted))
	}
}

// TestRestartIsToldAfterOutage: the observer is called for the guard even if the master was known to be down.
func TestRestartIsToldAfterOutage(t *testing.T) {
	t.Parallel()
	const maxTTL, guard = time.Second, 2 * time.Second
	var d diary
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, guard)
	l := newLocker(t, redistest.URLs(servers), redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL), redlock.WithTimeout(maxTTL/4),
		redlock.WithRestartGuard(guard), d.option())
	name := servers[0].URL()
	until := func(what string, happened func() bool) {
		eventually(t, bound, what, func() bool {
			lockUnlock(t, l, "key")
			return happened()
		})
	}
	lockUnlock(t, l, "key")
	servers[0].Kill()
	until("the outage is told", func() bool { return len(d.find("down", name, nil)) > 0 })
	if early := d.find("down", name, redlock.ErrRestarted); len(early) > 0 {
		t.Fatalf("a restart is told before there was one: %v", early)
	}
	servers[0].Restart()
	until("the restart is told", func() bool { return len(d.find("down", name, redlock.ErrRestarted)) > 0 })
	until("the master votes again", func() bool { return !d.upAfter(name, redlock.ErrRestarted).IsZero() })
	if n := len(d.find("down", name, redlock.ErrRestarted)); n != 1 {
		t.Errorf("the restart was told %d times", n)
	}
}

// TestColdStart restarts all masters: the error says when there will be a quorum.
func TestColdStart(t *testing.T) {
	t.Parallel()
	const maxTTL, guard = 3 * time.Second, 15 * time.Second
	var d diary
	servers := redistest.Start(t, 3)
	l := newLocker(t, redistest.URLs(servers), redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL), redlock.WithTimeout(maxTTL/4),
		redlock.WithRestartGuard(guard), d.option())
	_, err := l.TryLock(t.Context(), "key")
	var quorum *redlock.QuorumError
	if !errors.As(err, &quorum) || !errors.Is(err, redlock.ErrRestarted) {
		t.Fatalf("TryLock: %v, want a QuorumError for ErrRestarted", err)
	}
	if quorum.RetryAfter <= 0 || quorum.RetryAfter > guard {
		t.Errorf("RetryAfter %v, want at most %v", quorum.RetryAfter, guard)
	}
	for _, s := range servers {
		eventually(t, bound, "the observer hears of the restart", func() bool {
			return len(d.find("down", s.URL(), redlock.ErrRestarted)) == 1
		})
		if n := commands(s); n > 0 {
			t.Errorf("%s got %d commands in its guard", s.URL(), n)
		}
	}
	time.Sleep(quorum.RetryAfter)
	eventually(t, bound, "the lock after RetryAfter", func() bool {
		lock := tryLock(t, l, "key")
		if lock != nil {
			unlocked(t, lock)
		}
		return lock != nil
	})
	eventually(t, bound, "a master votes again, by the observer", func() bool { return len(d.find("up", "", nil)) > 0 })
}
