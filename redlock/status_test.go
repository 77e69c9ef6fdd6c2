package redlock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// requireState waits until a master has this state.
func requireState(t *testing.T, l *redlock.Locker, master int, want redlock.MasterState) redlock.MasterStatus {
	t.Helper()
	var s redlock.MasterStatus
	defer func() {
		if t.Failed() {
			t.Logf("master %d is %q (%v), want %q", master, s.State, s.Err, want)
		}
	}()
	eventually(t, 3*bound, "the master is "+string(want), func() bool {
		s = l.Status().Masters[master]
		return s.State == want
	})
	if (s.Err == nil) != (want == redlock.MasterAvailable || want == redlock.MasterConnecting) {
		t.Errorf("%s, with the error %v", want, s.Err)
	}
	return s
}

// TestStatusOfMasters: what happens to a master shows without any traffic, and so does its return.
func TestStatusOfMasters(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const guard = 7 * time.Second
		l := simLocker(t, net.Masters(), redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithMaxSkew(0), redlock.WithRestartGuard(guard))
		for i := range 3 {
			m := requireState(t, l, i, redlock.MasterAvailable)
			if m.Name != fmt.Sprint("sim://", i) || m.Version != "7.4.0" || m.MaxmemoryPolicy != "noeviction" || m.UsedMemory != 1<<20 || m.ClockOffset.Abs() > time.Millisecond {
				t.Errorf("what is known of a healthy master: %+v", m)
			}
		}
		net.Servers[0].Kill()
		away := requireState(t, l, 0, redlock.MasterUnreachable)
		if away.Since.IsZero() || away.RoundTrip != 0 || away.ClockOffset != 0 {
			t.Errorf("of one that is away: %+v", away)
		}
		net.Servers[1].Hang()
		requireState(t, l, 1, redlock.MasterHung)
		if s := l.Status(); s.Ready() || s.Available != 1 {
			t.Errorf("%+v", s)
		}
		net.Servers[1].Resume()
		requireState(t, l, 1, redlock.MasterAvailable)
		net.Servers[0].Restart()
		if m := requireState(t, l, 0, redlock.MasterRestarted); time.Until(m.Until) > guard || m.Until.IsZero() || !m.Since.Equal(away.Since) {
			t.Errorf("a restarted master votes again at %v, and has been ill since %v, want %v", m.Until, m.Since, away.Since)
		}
		if m := requireState(t, l, 0, redlock.MasterAvailable); !m.Since.IsZero() {
			t.Errorf("one that is well has been ill since %v", m.Since)
		}
		net.Servers[2].Demote()
		requireState(t, l, 2, redlock.MasterExcluded)
		net.Servers[2].Promote()
		requireState(t, l, 2, redlock.MasterReplaced)
		requireState(t, l, 2, redlock.MasterAvailable)
	})
}

// TestStatusOfMemory: what a master says of its memory is asked for again, also of one that is busy.
func TestStatusOfMemory(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		var log logBook
		l := simLocker(t, net.Masters(), log.option())
		requireState(t, l, 0, redlock.MasterAvailable)
		set := func(policy string, used, most int64) {
			net.Servers[0].SetInfo(func(info *simnet.Info) { info.Memory.Policy, info.Memory.Used, info.Memory.Max = policy, used, most })
		}
		set("allkeys-lru", 20<<20, 1<<30)
		eventually(t, bound, "the status has the memory of now", func() bool { // of a master that is busy
			lockUnlock(t, l, "key")
			m := l.Status().Masters[0]
			return m.UsedMemory == 20<<20 && m.Maxmemory == 1<<30 && m.MaxmemoryPolicy == "allkeys-lru" && m.Evicts && m.State == redlock.MasterAvailable
		})
		log.expect(t, "level=WARN", "master may evict locks", "maxmemory-policy=allkeys-lru")
		set("noeviction", 0, 0)
		log.expect(t, "master evicts no locks any more")
		if lines := log.lines("evict"); len(lines) != 2 || l.Status().Masters[0].Evicts {
			t.Errorf("%q", lines)
		}
	})
}

// TestStatusOfSeveral: a server that is named twice, and one whose user lacks a right.
func TestStatusOfSeveral(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 2)
	command(t, servers[1], "ACL", "SETUSER", "poor", "on", ">secret", "~*", "&*", "+info", "+time", "+ping", "+hello", "+client", "+auth")
	_, port, _ := strings.Cut(servers[0].Addr(), ":")
	l := newLocker(t, []string{servers[0].URL(), "redis://localhost:" + port, "redis://poor:secret@" + servers[1].Addr()})
	eventually(t, bound, "the server has one vote", func() bool {
		s := l.Status()
		return s.Masters[0].State == redlock.MasterExcluded || s.Masters[1].State == redlock.MasterExcluded
	})
	requireState(t, l, 2, redlock.MasterRefuses)
	if s := l.Status().Masters[2]; strings.Contains(s.Name, "secret") {
		t.Errorf("the name %s has the password", s.Name)
	}
}

// TestStatusOfLocks counts the keys that are held and the calls that wait.
func TestStatusOfLocks(t *testing.T) {
	t.Parallel()
	l := newLocker(t, []string{"memory://"})
	require := func(what string, held, waiting int) {
		t.Helper()
		eventually(t, bound, what, func() bool { s := l.Status(); return s.Held == held && s.Waiting == waiting })
	}
	require("nothing at first", 0, 0)
	lock, err := l.LockAll(t.Context(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	require("two keys", 2, 0)
	waited := make(chan *redlock.Lock)
	go func() {
		second, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Error(err)
		}
		waited <- second
	}()
	require("and one that waits", 2, 1)
	mustUnlock(t, lock)
	second := <-waited
	require("which has the lock now", 1, 0)
	mustUnlock(t, second)
	require("nothing at last", 0, 0)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(); s.Ready() || s.Err == nil {
		t.Errorf("after Close: %+v", s)
	}
}

// TestStatusOfCluster: a Redis Cluster is one master, as available as the node of it that is worst off.
func TestStatusOfCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	l := onCluster(t, nodes)
	requireState(t, l, 0, redlock.MasterAvailable)
	nodes[1].Kill()
	requireState(t, l, 0, redlock.MasterUnreachable)
	nodes[1].Restart()
	n := 0 // a node that has refused locks is known to grant them by the next one: all of them get some
	eventually(t, 3*bound, "the cluster grants locks", func() bool {
		n++
		lock, err := l.TryLock(t.Context(), fmt.Sprint(n))
		if err == nil {
			mustUnlock(t, lock)
		}
		return err == nil && l.Status().Masters[0].State == redlock.MasterAvailable
	})
}
