package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestWrongClockHasNoVote has a master whose clock is an hour ahead from the start, until it is set right.
func TestWrongClockHasNoVote(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const maxTTL = 2 * time.Second
		net.Servers[0].SetClock(time.Hour)
		var d diary
		var log logBook
		l := simLocker(t, net.Masters(), d.option(), log.option(),
			redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL))
		name := "sim://0"
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
			mustUnlock(t, lock)
		}
		if up := d.find("up", name, nil); len(up) > 0 {
			t.Errorf("votes with its wrong clock: %v", up)
		}
		net.Servers[0].SetClock(0)
		eventually(t, bound, "the master votes again", func() bool {
			lockUnlock(t, l, "key")
			return len(d.find("up", name, nil)) > 0
		})
		if down := clocksDown(&d, "sim://1", "sim://2"); len(down) > 0 {
			t.Errorf("the others are blamed: %v", down)
		}
	})
}

// TestClocksSetBack sets the clocks of all masters back while a key is free and its fence forgotten: the next
// fence would be smaller.
func TestClocksSetBack(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const back = 8 * time.Second
		set := func(ahead time.Duration) {
			for _, s := range net.Servers {
				s.SetClock(ahead)
			}
		}
		set(time.Hour)
		l := simLocker(t, net.Masters(), redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second))
		lock := mustLock(t, l, "key")
		mustUnlock(t, lock)
		for _, s := range net.Servers {
			eventually(t, bound, "the fence is forgotten", func() bool { return s.Fence("key") == 0 })
		}
		lockUnlock(t, l, "another") // it has seen the clocks by now
		set(time.Hour - back)
		fresh := simLocker(t, net.Masters(), redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second))
		for _, l := range []*redlock.Locker{l, fresh} { // it has not seen them itself
			var quorum *redlock.QuorumError
			_, err := l.TryLock(t.Context(), "key")
			if !errors.As(err, &quorum) || !strings.Contains(err.Error(), "clock") {
				t.Errorf("TryLock after the clocks were set back: %v, want a QuorumError that tells of them", err)
			}
		}
		eventually(t, bound, "the clocks have caught up", func() bool {
			next := tryLock(t, l, "key")
			if next == nil {
				return false
			}
			if next.Fence() <= lock.Fence() {
				t.Errorf("fence %d after %d", next.Fence(), lock.Fence())
			}
			mustUnlock(t, next)
			return true
		})
	})
}

// TestFenceOfAWrongClock: a master's clock was 20 s ahead for a moment. When it is right again, the master still
// has the fences from then; none of them becomes a lock's, not even while another master is down.
func TestFenceOfAWrongClock(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const maxTTL = 500 * time.Millisecond
		var d diary
		l := simLocker(t, net.Masters(), d.option(),
			redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL))
		lockUnlock(t, l, "key")
		net.Servers[0].SetClock(20 * time.Second)
		stored := func() time.Duration {
			return time.Until(time.UnixMicro(net.Servers[0].Fence("key")))
		}
		eventually(t, bound, "the wrong clock gives a fence", func() bool {
			lockUnlock(t, l, "key")
			return stored() > 10*time.Second
		})
		net.Servers[0].SetClock(0)
		eventually(t, bound, "the master votes again", func() bool {
			lockUnlock(t, l, "key")
			return len(d.find("up", "sim://0", nil)) > 0
		})
		net.Servers[2].Kill()
		lockUnlock(t, l, "other")
		for range 20 {
			lock, err := l.TryLock(t.Context(), "key")
			if err == nil {
				if ahead := time.Until(time.UnixMicro(int64(lock.Fence()))); ahead > 5*time.Second {
					t.Fatalf("the fence is %v ahead", ahead)
				}
				mustUnlock(t, lock)
			} else if !errors.Is(err, redlock.ErrNoQuorum) {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}
