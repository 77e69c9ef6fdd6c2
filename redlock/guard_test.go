package redlock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestRestartGuard: a holder has locked two of three masters, its quorum, and one of these restarts empty. Together with the third it would be
// a quorum for another holder, and without the guard it is.
func TestRestartGuard(t *testing.T) {
	for _, guard := range []time.Duration{0, simTTL + time.Second} {
		t.Run(guard.String(), func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var d diary
				opts := []redlock.Option{redlock.WithRestartGuard(guard), d.option()}
				nowhere := simnet.NewAddress("sim://2", nil)
				first := simLocker(t, net.Masters(net.Addresses[0], net.Addresses[1], nowhere), opts...)
				lock := mustLock(t, first, "key")
				net.Addresses[0].Set(simnet.Weather{Replies: true}) // nothing is renewed
				restarted := time.Now()
				net.Servers[1].Reboot()
				net.Addresses[0].Set(simnet.Weather{})
				others := simLocker(t, net.Masters(), opts...)
				var second *redlock.Lock
				eventually(t, bound, "a second lock", func() bool { second = tryLock(t, others, "key"); return second != nil })
				if guard == 0 {
					if lock.Err() != nil {
						t.Error("want two holders at once")
					}
					return
				}
				if lock.Err() != redlock.ErrLost || time.Now().Before(lock.Until()) || second.Fence() <= lock.Fence() {
					t.Errorf("a second holder, of fence %d after %d, %v before the end of the first: %v", second.Fence(), lock.Fence(), time.Until(lock.Until()), lock.Err())
				}
				mustUnlock(t, second)
				eventually(t, bound, "the restarted master votes again", func() bool {
					lockUnlock(t, others, "key")
					return !d.upAfter("sim://1", redlock.ErrRestarted).IsZero()
				})
				if up := d.upAfter("sim://1", redlock.ErrRestarted).Sub(restarted); up < simTTL || up > guard+time.Second {
					t.Errorf("the restarted master votes after %v", up)
				}
			})
		})
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
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const guard = 15 * time.Second
		var d diary
		for _, server := range net.Servers {
			server.Reboot()
		}
		l := simLocker(t, net.Masters(), redlock.WithRestartGuard(guard), d.option())
		_, err := l.TryLock(t.Context(), "key")
		var quorum *redlock.QuorumError
		if !errors.As(err, &quorum) || !errors.Is(err, redlock.ErrRestarted) || quorum.RetryAfter < guard-time.Second || quorum.RetryAfter > guard+time.Second {
			t.Fatalf("TryLock: %v, want a QuorumError for ErrRestarted with the guard to wait for", err)
		}
		for i, server := range net.Servers {
			d.expect(t, "down", fmt.Sprint("sim://", i), redlock.ErrRestarted)
			if n := server.Calls(simnet.Acquire); n > 0 {
				t.Errorf("%d got %d commands in its guard", i, n)
			}
		}
		time.Sleep(quorum.RetryAfter)
		mustUnlock(t, mustLock(t, l, "key", redlock.WithWait(time.Second)))
		d.expect(t, "up", "", nil)
	})
}
