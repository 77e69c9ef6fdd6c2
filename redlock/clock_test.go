package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

const clockMaxTTL = 1500 * time.Millisecond

// onClocks gives a Locker that notices clocks by what its leases show alone.
func onClocks(t *testing.T, net *simnet.Net, d *diary) *redlock.Locker {
	t.Helper()
	return simLocker(t, net.Masters(), redlock.WithTTL(clockMaxTTL), redlock.WithMaxTTL(clockMaxTTL), redlock.WithMaxSkew(0), d.option())
}

// clocksDown returns the reports that one of these masters is down because of its clock.
func clocksDown(d *diary, masters ...string) (found []event) {
	for _, name := range masters {
		for _, e := range d.find("down", name, nil) {
			if strings.Contains(e.err.Error(), "clock") {
				found = append(found, e)
			}
		}
	}
	return found
}

func TestClockJump(t *testing.T) {
	for _, jump := range []time.Duration{5 * time.Second, -5 * time.Second} {
		t.Run(jump.String(), func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var d diary
				l := onClocks(t, net, &d)
				for range 50 {
					lockUnlock(t, l, "key")
				}
				if down := clocksDown(&d, "sim://0", "sim://1", "sim://2"); len(down) > 0 {
					t.Fatalf("down before the jump: %v", down)
				}
				jumped := time.Now()
				net.Servers[0].SetClock(jump)
				eventually(t, bound, "the jump is noticed", func() bool {
					lockUnlock(t, l, "key")
					return len(clocksDown(&d, "sim://0")) > 0
				})
				asked := func() int { return net.Servers[0].Calls(simnet.Acquire) }
				before := asked()
				for time.Since(jumped) < clockMaxTTL-time.Millisecond { // locking goes on, without that master
					lockUnlock(t, l, "key")
					time.Sleep(time.Millisecond)
				}
				if n := asked() - before; n > 0 {
					t.Errorf("the master was asked for %d locks after its clock had jumped", n)
				}
				if up := d.find("up", "sim://0", nil); len(up) > 0 {
					t.Errorf("voted again %v after the jump, want not before the max TTL of %v", up[0].at.Sub(jumped), clockMaxTTL)
				}
				eventually(t, bound, "the master votes again", func() bool {
					lockUnlock(t, l, "key")
					return len(d.find("up", "sim://0", nil)) > 0 && asked() > before
				})
				if down := clocksDown(&d, "sim://0", "sim://1", "sim://2"); len(down) != 1 {
					t.Errorf("down: %v, want once", down)
				}
			})
		})
	}
}

// TestFastClock: leases end early on a master whose clock runs 50 % too fast.
func TestFastClock(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var d diary
		l := onClocks(t, net, &d)
		lockUnlock(t, l, "key")
		net.Servers[0].SetSpeed(500)
		eventually(t, bound, "the fast clock is noticed", func() bool {
			lockUnlock(t, l, "key")
			return len(clocksDown(&d, "sim://0")) > 0
		})
		lock := mustLock(t, l, "held")
		// For longer than the first quarantine: it is noticed again at its end.
		stays(t, 2*clockMaxTTL, "held by the other masters", func() bool { return lock.Err() == nil })
		if up := d.find("up", "sim://0", nil); len(up) > 0 {
			t.Errorf("the master votes with its fast clock: %v", up)
		}
		mustUnlock(t, lock)
	})
}
