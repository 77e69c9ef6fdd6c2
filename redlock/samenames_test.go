package redlock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestSameNamesOtherServers: two of three names lead to other servers in a second process, as DNS may do. That one is refused from the
// start, even if the first one has just seen a server restart: both servers of a name have been there for too long to be one.
func TestSameNamesOtherServers(t *testing.T) {
	simnet.Run(t, 5, func(t *testing.T, net *simnet.Net) {
		guarded := []redlock.Option{redlock.WithMaxTTL(14 * time.Second), redlock.WithRestartGuard(15 * time.Second)}
		first := simLocker(t, net.Pick(0, 1, 2), guarded...)
		lockUnlock(t, first, "order:1")
		restart := func(i, voting int) {
			net.Servers[i].Kill()
			eventually(t, bound, "the server is missed", func() bool { return first.Status().Available < 3 })
			net.Servers[i].Restart()
			eventually(t, bound, "the others vote", func() bool { return first.Status().Available == voting })
		}
		restart(1, 3)
		for range 2 {
			var log logBook
			second := simLocker(t, net.Masters(net.Addresses[0], simnet.NewAddress("sim://1", net.Servers[3]), simnet.NewAddress("sim://2", net.Servers[4])), append(guarded, log.option())...)
			eventually(t, bound, "it is registered", func() bool { return net.Servers[3].Processes() > 0 })
			held := mustLock(t, first, "order:1")
			mustInspect(t, second, "order:1")
			if lock, err := second.TryLock(t.Context(), "order:1"); err == nil {
				t.Errorf("two hold the lock: %v, and %v", held.Err(), lock.Err())
			}
			mustUnlock(t, held)
			log.expect(t, "level=ERROR", "another process has other masters")
			restart(2, 2)
		}
	})
}

// TestLossUnderOtherNames: two processes have other names for the same servers, of which two restart or lose their data, one after the other.
// Neither process is refused because of the other, although each has told of the former run under a name that the other doesn't know.
func TestLossUnderOtherNames(t *testing.T) {
	for name, lose := range map[string]func(*simnet.Server){"restart": (*simnet.Server).Reboot, "loss": (*simnet.Server).Flush} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var renamed []*simnet.Address
				for i, s := range net.Servers {
					renamed = append(renamed, simnet.NewAddress(fmt.Sprintf("sim://other:%d", i), s))
				}
				var log logBook
				var diaries [2]diary
				var lockers []*redlock.Locker
				for i, addresses := range [][]*simnet.Address{net.Addresses, renamed} {
					l := simLocker(t, net.Masters(addresses...), log.option(), diaries[i].option(), redlock.WithRestartGuard(simTTL+time.Second))
					lockUnlock(t, l, "order:1")
					lockers = append(lockers, l)
				}
				for i := range 2 {
					lose(net.Servers[i])
					stays(t, time.Minute, "neither is refused", func() bool { return lockers[0].Status().Err == nil && lockers[1].Status().Err == nil })
					for j, address := range []*simnet.Address{net.Addresses[i], renamed[i]} {
						if len(diaries[j].find("down", address.String(), nil)) == 0 || lockers[j].Status().Available != 3 {
							t.Errorf("%v: missed %v, then %+v", address, diaries[j].find("down", "", nil), lockers[j].Status())
						}
						lockUnlock(t, lockers[j], "order:1")
					}
				}
				if lines := log.lines("another process has other masters"); len(lines) > 0 {
					t.Error(lines)
				}
			})
		})
	}
}
