package redlock_test

import (
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

func TestOneServerUnderTwoNames(t *testing.T) {
	simnet.Run(t, 2, func(t *testing.T, net *simnet.Net) {
		alias, dead := simnet.NewAddress("sim://alias", net.Servers[0]), simnet.NewAddress("sim://dead", nil)
		var log logBook
		l := simLocker(t, net.Masters(append(net.Addresses, alias)...), log.option())
		lockUnlock(t, l, "key") // two servers are a quorum
		log.expect(t, "level=ERROR", "sim://0", "sim://alias")

		l = simLocker(t, net.Masters(net.Addresses[0], alias, dead))
		for range 10 { // no order of connecting gives it two votes
			requireNoQuorumAtAll(t, l)
			net.Addresses[0].Cut()
			alias.Cut()
		}
		net.RequireNoKeys(t)
	})
}

func requireNoQuorumAtAll(t *testing.T, l *redlock.Locker) {
	t.Helper()
	if lock, err := l.TryLock(t.Context(), "key"); err == nil {
		t.Error("one server alone made a quorum of three masters")
		mustUnlock(t, lock)
	}
}

func TestReplicaHasNoVote(t *testing.T) {
	simnet.Run(t, 2, func(t *testing.T, net *simnet.Net) {
		net.Servers[1].Demote()
		var log logBook
		l := simLocker(t, append(net.Masters(), net.Masters(simnet.NewAddress("sim://dead", nil))...), log.option())
		requireNoQuorumAtAll(t, l)
		log.expect(t, "level=ERROR", "sim://1", "replica")
		if lines := log.lines("level=ERROR", "sim://0 "); len(lines) > 0 {
			t.Errorf("the log blames the master: %q", lines)
		}
		net.RequireNoKeys(t)
	})
}

func TestEvictionIsWarnedAbout(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		net.Servers[0].SetInfo(func(info *simnet.Info) { info.Memory.Policy = "allkeys-lru" })
		var log logBook
		lockUnlock(t, simLocker(t, net.Masters(), log.option()), "key")
		log.expect(t, "level=WARN", "sim://0", "allkeys-lru", "noeviction")
	})
}
