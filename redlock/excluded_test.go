package redlock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestExclusionsEnd: a master that is excluded says what to do. That is done, and the master is back.
func TestExclusionsEnd(t *testing.T) {
	without := func(_ *testing.T, net *simnet.Net) []redlock.Master {
		net.Servers[0].SetInfo(func(info *simnet.Info) { *info = simnet.Info{} })
		return net.Pick(0)
	}
	replica := func(_ *testing.T, net *simnet.Net) []redlock.Master {
		net.Servers[0].Demote()
		return net.Pick(0)
	}
	another := func(t *testing.T, net *simnet.Net, _ *redlock.Locker) *redlock.Locker {
		return simLocker(t, net.Pick(1))
	}
	for name, test := range map[string]struct {
		provoke func(*testing.T, *simnet.Net) []redlock.Master
		guard   time.Duration
		does    string // the words that are followed
		follow  func(*testing.T, *simnet.Net, *redlock.Locker) *redlock.Locker
	}{
		"replica":                {replica, 0, "name its master", another},
		"replica, one of others": {replica, 0, "an independent server instead", another},
		"no INFO": {without, simTTL + time.Second, "grant this user INFO", func(_ *testing.T, net *simnet.Net, l *redlock.Locker) *redlock.Locker {
			net.Servers[0].SetInfo(func(info *simnet.Info) { info.HasUptime = true })
			return l
		}},
		"no INFO, no guard": {without, simTTL + time.Second, "turn the restart guard off", func(t *testing.T, net *simnet.Net, _ *redlock.Locker) *redlock.Locker {
			return simLocker(t, without(t, net))
		}},
		"named twice": {func(_ *testing.T, net *simnet.Net) []redlock.Master {
			return net.Masters(simnet.NewAddress("sim://alias", net.Servers[0]), net.Addresses[0])
		}, 0, "list each server once", func(t *testing.T, net *simnet.Net, _ *redlock.Locker) *redlock.Locker {
			return simLocker(t, net.Pick(0))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 2, func(t *testing.T, net *simnet.Net) {
				l := simLocker(t, test.provoke(t, net), redlock.WithRestartGuard(test.guard))
				eventually(t, bound, "a master is excluded and says: "+test.does, func() bool {
					return slices.ContainsFunc(l.Status().Masters, func(m redlock.MasterStatus) bool {
						return m.State == redlock.MasterExcluded && strings.Contains(fmt.Sprint(m.Err), test.does)
					})
				})
				requireState(t, test.follow(t, net, l), 0, redlock.MasterAvailable)
			})
		})
	}
}
