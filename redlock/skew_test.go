package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestWrongClockHasNoVote has a master whose clock is an hour ahead from the start, until it is set right.
func TestWrongClockHasNoVote(t *testing.T) {
	t.Parallel()
	const maxTTL = 2 * time.Second
	servers, set := withFakedClock(t)
	set(time.Hour, 0)
	var d diary
	var log logBook
	l := newLocker(t, redistest.URLs(servers), d.option(), log.option(),
		redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL), redlock.WithTimeout(maxTTL/2))
	name := servers[0].URL()
	eventually(t, bound, "the master is down for its clock", func() bool {
		lockUnlock(t, l, "key")
		return len(d.find("down", name, nil)) > 0
	})
	log.expect(t, "level=WARN", name, "ahead of", "max skew", "NTP")
	for range 100 {
		lock := mustLock(t, l, "key")
		if ahead := time.Until(time.UnixMicro(int64(lock.Fence()))); ahead > time.Minute {
			t.Fatalf("the fence is %v ahead: the wrong clock has voted", ahead)
		}
		if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrExpired) && !errors.Is(err, redlock.ErrNoQuorum) { // the lease is short
			t.Fatal(err)
		}
	}
	if up := d.find("up", name, nil); len(up) > 0 {
		t.Errorf("votes with its wrong clock: %v", up)
	}
	set(0, 0)
	eventually(t, bound, "the master votes again", func() bool {
		lockUnlock(t, l, "key")
		return len(d.find("up", name, nil)) > 0
	})
	if down := clocksDown(&d, servers[1:]); len(down) > 0 {
		t.Errorf("the others are blamed: %v", down)
	}
}

// TestClocksSetBack sets the clocks of all masters back while a key is free and its fence forgotten: the next
// fence would be smaller.
func TestClocksSetBack(t *testing.T) {
	t.Parallel()
	const back = 8 * time.Second
	clock := redistest.NewClock(t)
	var servers []*redistest.Server
	for range 3 {
		servers = append(servers, redistest.StartWith(t, clock.Env()))
	}
	forget := func() {
		for _, s := range servers {
			eventually(t, 2*bound, "the fence is forgotten", func() bool {
				return fenceOn(s, "key") == 0
			})
		}
	}
	clock.Set(time.Hour, 0)
	l := newLocker(t, redistest.URLs(servers), redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithTimeout(time.Second/2))
	lock := mustLock(t, l, "key")
	_ = unlocked(t, lock)
	forget()
	lockUnlock(t, l, "another") // it has seen the clocks by now
	clock.Set(time.Hour-back, 0)
	fresh := newLocker(t, redistest.URLs(servers), redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithTimeout(time.Second/2))
	for _, l := range []*redlock.Locker{l, fresh} { // it has not seen them itself
		var err error
		var quorum *redlock.QuorumError
		eventually(t, bound, "the masters answer in time", func() bool { // on a busy machine they may not
			_, err = l.TryLock(t.Context(), "key")
			return !errors.As(err, &quorum) || strings.Contains(err.Error(), "clock")
		})
		if !errors.As(err, &quorum) || !strings.Contains(err.Error(), "clock") {
			t.Errorf("TryLock after the clocks were set back: %v, want a QuorumError that tells of them", err)
		}
	}
	eventually(t, 2*bound, "the clocks have caught up", func() bool {
		next := tryLock(t, l, "key")
		if next == nil {
			return false
		}
		if next.Fence() <= lock.Fence() {
			t.Errorf("fence %d after %d", next.Fence(), lock.Fence())
		}
		_ = unlocked(t, next)
		return true
	})
}

// TestFenceOfAWrongClock: a master's clock was 20 s ahead for a moment. When it is right again, the master still
// has the fences from then; none of them becomes a lock's, not even while another master is down.
func TestFenceOfAWrongClock(t *testing.T) {
	t.Parallel()
	const maxTTL = 500 * time.Millisecond
	servers, set := withFakedClock(t)
	var d diary
	l := newLocker(t, redistest.URLs(servers), d.option(),
		redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL), redlock.WithTimeout(maxTTL/2))
	lockUnlock(t, l, "key")
	set(20*time.Second, 0)
	stored := func() time.Duration {
		return time.Until(time.UnixMicro(fenceOn(servers[0], "key")))
	}
	eventually(t, bound, "the wrong clock gives a fence", func() bool {
		lockUnlock(t, l, "key")
		return stored() > 10*time.Second
	})
	set(0, 0)
	eventually(t, bound, "the master votes again", func() bool {
		lockUnlock(t, l, "key")
		return len(d.find("up", servers[0].URL(), nil)) > 0
	})
	servers[2].Kill()
	lockUnlock(t, l, "other")
	for range 20 {
		lock, err := l.TryLock(t.Context(), "key")
		if err == nil {
			if ahead := time.Until(time.UnixMicro(int64(lock.Fence()))); ahead > 5*time.Second {
				t.Fatalf("the fence is %v ahead", ahead)
			}
			_ = unlocked(t, lock)
		} else if !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
