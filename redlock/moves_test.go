package redlock_test

import (
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// guards: with each of them, a server that is known and may lack locks has no vote.
var guards = map[string]time.Duration{"guard": simTTL + time.Second, "no guard": 0}

// TestAnotherServerBehindAnAddress moves two of three addresses, as failovers do, to servers that have been running
// for long and have no locks.
func TestAnotherServerBehindAnAddress(t *testing.T) {
	for name, guard := range guards {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 5, func(t *testing.T, net *simnet.Net) {
				var d diary
				others := simLocker(t, net.Pick(0, 1, 2), redlock.WithRestartGuard(guard), d.option())
				lockUnlock(t, others, "key")
				lock := mustLock(t, simLocker(t, net.Pick(0, 1, 2), redlock.WithRestartGuard(guard)), "key")
				moved := time.Now()
				net.Addresses[0].MoveTo(net.Servers[3])
				net.Addresses[1].MoveTo(net.Servers[4])
				requireExclusion(t, others, lock)
				for i := range 2 {
					name := net.Addresses[i].String()
					d.expect(t, "down", name, redlock.ErrReplaced)
					eventually(t, bound, "the other server votes", func() bool { return !d.upAfter(name, redlock.ErrReplaced).IsZero() })
					if up := d.upAfter(name, redlock.ErrReplaced); up.Before(moved.Add(simTTL)) {
						t.Errorf("the other server votes after %v, want not before the max TTL", up.Sub(moved))
					}
				}
				net.RequireNoKeys(t)
			})
		})
	}
}

// TestServersSwapAddresses: two servers that have swapped their addresses vote again after the guard.
func TestServersSwapAddresses(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var d diary
		l := simLocker(t, net.Masters(), redlock.WithRestartGuard(simTTL+time.Second), d.option())
		lockUnlock(t, l, "key")
		swapped := time.Now()
		net.Addresses[0].MoveTo(net.Servers[1])
		net.Addresses[1].MoveTo(net.Servers[0])
		for _, a := range net.Addresses[:2] {
			d.expect(t, "down", a.String(), redlock.ErrReplaced)
		}
		if lock := tryLock(t, l, "other"); lock != nil {
			t.Error("a lock of two servers that have swapped their addresses")
		}
		for _, a := range net.Addresses[:2] {
			d.expect(t, "up", a.String(), nil)
			if up := d.upAfter(a.String(), redlock.ErrReplaced); up.Before(swapped.Add(simTTL)) {
				t.Errorf("%s votes after %v, want not before the max TTL", a, up.Sub(swapped))
			}
		}
		net.Servers[2].Kill()
		lockUnlock(t, l, "key") // the two are a quorum
	})
}

// TestClockSetForwardAfterRestart: a server that has forgotten its locks doesn't vote early because its clock is
// set forward.
func TestClockSetForwardAfterRestart(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var d diary
		l := simLocker(t, net.Masters(), redlock.WithRestartGuard(simTTL+time.Second), d.option())
		lockUnlock(t, l, "key")
		restarted := time.Now()
		net.Servers[0].Reboot()
		net.Servers[0].SetClock(time.Minute)
		voted := func() time.Time { return d.upAfter("sim://0", redlock.ErrRestarted) }
		eventually(t, bound, "the master votes again", func() bool {
			lockUnlock(t, l, "key")
			return !voted().IsZero()
		})
		if voted().Before(restarted.Add(simTTL)) {
			t.Errorf("it votes %v after its restart, want not before the max TTL", voted().Sub(restarted))
		}
	})
}

// TestClockSetBackSinceStart: a server whose uptime is negative waits for the guard and no longer, or not at all.
func TestClockSetBackSinceStart(t *testing.T) {
	for name, guard := range guards {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
				net.Servers[0].SetClock(-25 * time.Hour)
				var d diary
				l := simLocker(t, net.Masters(), redlock.WithRestartGuard(guard), d.option())
				began := time.Now()
				mustUnlock(t, mustLock(t, l, "key"))
				if took := time.Since(began); took > guard+2*time.Second || took < guard {
					t.Errorf("a lock after %v", took)
				}
				mustClose(t, l) // then all is told
				if down := d.find("down", "", redlock.ErrRestarted); len(down) > 1 || (len(down) == 1) != (guard > 0) {
					t.Errorf("down %v, want once for the guard, and not without one", d.find("down", "", nil))
				}
			})
		})
	}
}

// TestGuardOffWithoutInfo: without the guard, a server need not report its uptime.
func TestGuardOffWithoutInfo(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		for _, s := range net.Servers {
			s.SetInfo(func(info *simnet.Info) { *info = simnet.Info{} })
		}
		var log logBook
		lockUnlock(t, simLocker(t, net.Masters(), log.option()), "key")
		log.expect(t, "level=WARN", "sim://0", "INFO")
	})
}
