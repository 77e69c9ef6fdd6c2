package redlock_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	wire "github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestRenewals: neither a way as long as a tenth of the TTL, which is too long for the timeout of new locks, nor servers whose memory is full,
// which take no new lock, have a lease end.
func TestRenewals(t *testing.T) {
	for name, trouble := range map[string]func(net *simnet.Net, i int){
		"slow": func(net *simnet.Net, i int) { net.Addresses[i].Set(simnet.Weather{Delay: simTTL / 20}) },
		"full": func(net *simnet.Net, i int) { net.Servers[i].Fill() },
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				l := simLocker(t, net.Masters())
				held := mustLock(t, l, "order:1")
				for i := range 3 {
					trouble(net, i)
				}
				others(t, l, 2*simTTL, held)
			})
		})
	}
}

// others asks for other locks for a while, in which a held one must not be lost.
func others(t *testing.T, l *redlock.Locker, while time.Duration, held *redlock.Lock) {
	t.Helper()
	for began := time.Now(); time.Since(began) < while; time.Sleep(50 * time.Millisecond) {
		if lock, err := l.TryLock(t.Context(), "order:2"); err == nil {
			_ = lock.Unlock()
		}
		if err := held.Err(); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
	}
	_ = held.Unlock()
}

// TestFullMasterIsNotAvailable: that a server renews leases doesn't say that it takes locks.
func TestFullMasterIsNotAvailable(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var d diary
		l := simLocker(t, net.Masters(), d.option())
		for i := range 10 { // whose renewals come one after the other
			held := mustLock(t, l, string(rune('a'+i)))
			defer mustUnlock(t, held)
			time.Sleep(simTTL / 30)
		}
		net.Servers[0].Fill()
		for began := time.Now(); time.Since(began) < 3*simTTL; time.Sleep(20 * time.Millisecond) {
			lockUnlock(t, l, "order:1")
		}
		d.expect(t, "down", "sim://0", nil)
		if downs, ups := d.find("down", "sim://0", nil), d.find("up", "sim://0", nil); len(downs) != 1 || len(ups) > 0 {
			t.Errorf("the server refuses every lock; it was said to be down %d times, and available again %d times", len(downs), len(ups))
		}
	})
}

// TestMasterOnProbationRefuses: what is decided of a master that comes and goes follows from what it does, and not from what was told of it before:
// one that was away, and refuses locks now, is tried as each such master is, leads nothing, and is said to refuse them.
func TestMasterOnProbationRefuses(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		refuses := net.Servers[0]
		for range 6 { // for a minute, in the end
			time.Sleep(2 * time.Second)
			net.Addresses[0].Set(simnet.Weather{Away: true})
			net.Addresses[0].Cut()
			time.Sleep(time.Second)
			net.Addresses[0].Set(simnet.Weather{})
		}
		time.Sleep(2 * time.Second)
		if m := l.Status().Masters[0]; m.State != redlock.MasterUnreachable || m.Until.IsZero() {
			t.Fatalf("is not on probation: %+v", m)
		}
		var led atomic.Int32
		noRight := wire.ErrorOf("NOPERM User u has no permissions to run the 'eval' command")
		refuses.Forge(func(cmd *simnet.Command) (forbidden bool) {
			if forbidden = cmd.Op == simnet.Acquire || cmd.Op == simnet.Trial; forbidden {
				cmd.Reply.Err = noRight
			}
			if cmd.Op == simnet.Acquire && cmd.Leads {
				led.Add(1)
			}
			return forbidden
		})
		lockUnlock(t, l, "key")
		time.Sleep(time.Second) // it is known
		led.Store(0)
		states := make(map[redlock.MasterState]int)
		trials := refuses.Calls(simnet.Trial)
		const asked = 4000
		for i := range asked {
			states[l.Status().Masters[0].State]++
			lockUnlock(t, l, fmt.Sprint(i%10, " of ten keys")) // which have different leaders
			time.Sleep(10 * time.Millisecond)                  // also when the pause after a refusal is over, and the next trial hasn't come
		}
		if states[redlock.MasterRefuses] != asked {
			t.Errorf("it was said to be %v", states)
		}
		if n := led.Load(); n > 0 {
			t.Errorf("it was to lead %d times", n)
		}
		if n := refuses.Calls(simnet.Trial) - trials; n < 10 {
			t.Errorf("it was tried %d times", n)
		}
		refuses.Forge(nil)
		time.Sleep(2 * time.Second)
		if m := l.Status().Masters[0]; m.State == redlock.MasterRefuses && m.Until.IsZero() {
			t.Errorf("one that takes locks again is %+v", m)
		}
	})
}
