package redlock_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
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
			inspect(t, second, "order:1")
			if lock, err := second.TryLock(t.Context(), "order:1"); err == nil {
				t.Errorf("two hold the lock: %v, and %v", held.Err(), lock.Err())
			}
			mustUnlock(t, held)
			log.expect(t, "level=ERROR", "another process has other masters")
			restart(2, 2)
		}
	})
}

// TestRestartWithOtherNames: two processes have other names for the same servers. When one server restarts, both go on, although each
// has told of the former run under a name that the other doesn't know.
func TestRestartWithOtherNames(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	var log logBook
	lockers := []*redlock.Locker{lockerOn(t, named(t, servers...), log.option()), newLocker(t, redistest.URLs(servers), log.option())}
	for _, s := range servers[:2] {
		for _, l := range lockers {
			lockUnlock(t, l, "order:1")
		}
		s.Kill()
		s.Restart()
		registered(t, len(lockers), s, s)
		for _, l := range lockers {
			lockUnlock(t, l, "order:1")
		}
	}
	if lines := log.lines("another process has other masters"); len(lines) > 0 {
		t.Error(lines)
	}
}

// TestEmptiedUnderOtherNames: two processes have other names for the same servers, of which one loses its data. Neither is refused because
// of the other, then or when that server votes again.
func TestEmptiedUnderOtherNames(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	var here, there diary
	opts := []redlock.Option{redlock.WithTTL(time.Second), redlock.WithMaxTTL(time.Second), redlock.WithTimeout(time.Second / 2)}
	lockers := []*redlock.Locker{
		lockerOn(t, named(t, servers...), slices.Concat(opts, []redlock.Option{here.option()})...),
		newLocker(t, redistest.URLs(servers), slices.Concat(opts, []redlock.Option{there.option()})...),
	}
	for _, l := range lockers {
		lockUnlock(t, l, "order:1")
	}
	allGoOn := func(done func(l *redlock.Locker) bool) bool {
		n := 0
		for _, l := range lockers {
			status := l.Status()
			if status.Err != nil {
				t.Fatalf("a process is refused: %v", status.Err)
			}
			if done(l) {
				n++
			}
		}
		return n == len(lockers)
	}
	command(t, servers[0], "FLUSHALL")
	for i, d := range []*diary{&here, &there} {
		name := lockers[i].Status().Masters[0].Name
		eventually(t, bound, "both notice the loss", func() bool {
			allGoOn(func(*redlock.Locker) bool { return true })
			return len(d.find("down", name, redlock.ErrReplaced)) > 0
		})
	}
	eventually(t, bound, "the server votes again", func() bool { return allGoOn(func(l *redlock.Locker) bool { return l.Status().Available == 3 }) })
	registered(t, len(lockers), servers[0], servers...)
	for _, l := range lockers {
		lockUnlock(t, l, "order:1")
	}
	allGoOn(func(*redlock.Locker) bool { return true })
}

// registered waits until a server knows n processes with the present runs of these servers.
func registered(t *testing.T, n int, on *redistest.Server, servers ...*redistest.Server) {
	t.Helper()
	lacks := func(told string) bool {
		return slices.ContainsFunc(servers, func(s *redistest.Server) bool {
			info, err := s.Client().InfoMap(t.Context(), "server").Result()
			return err != nil || !strings.Contains(told, `"run":"`+info["Server"]["run_id"])
		})
	}
	eventually(t, bound, "the servers are registered", func() bool {
		told, err := on.Client().HVals(t.Context(), "redlock:processes:{processes}").Result()
		return err == nil && len(slices.DeleteFunc(told, lacks)) >= n
	})
}

// named returns masters with the names a, b and so on, which lead to these servers.
func named(t *testing.T, servers ...*redistest.Server) (masters []redlock.Master) {
	t.Helper()
	for i, s := range servers {
		masters = append(masters, namedAs(t, string(rune('a'+i))+":6379", s))
	}
	return masters
}

// namedAs returns a master with this name, which leads to a server.
func namedAs(t *testing.T, name string, s *redistest.Server) redlock.Master {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: name, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Addr())
	}})
	defer func() { _ = client.Close() }() // NewMaster uses its options only
	m, err := redlock.NewMaster(client)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
