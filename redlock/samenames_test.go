package redlock_test

import (
	"context"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSameNamesOtherServers: two of three names lead to other servers in a second process, as DNS may do. That one is refused, even if the
// first one has seen those servers restart.
func TestSameNamesOtherServers(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 5)
	var log logBook
	first := lockerOn(t, named(t, servers[0], servers[1], servers[2]))
	lockUnlock(t, first, "order:1")
	for _, s := range servers[1:3] {
		s.Kill()
		eventually(t, bound, "the server is missed", func() bool { return first.Status().Available == 2 })
		s.Restart()
		eventually(t, bound, "it is available", func() bool { return first.Status().Available == 3 })
	}
	second := lockerOn(t, named(t, servers[0], servers[3], servers[4]), log.option())
	log.expect(t, "level=ERROR", "another process has other masters")
	lockUnlock(t, first, "order:1")
	held := mustLock(t, first, "order:1")
	if lock, err := second.TryLock(t.Context(), "order:1"); err == nil {
		t.Errorf("two hold the lock: %v, and %v", held.Err(), lock.Err())
		_ = lock.Unlock()
	}
	mustUnlock(t, held)
}

// named returns masters with the names a, b and so on, which lead to these servers.
func named(t *testing.T, servers ...*redistest.Server) (masters []redlock.Master) {
	t.Helper()
	for i, s := range servers {
		client := redis.NewClient(&redis.Options{Addr: string(rune('a'+i)) + ":6379", Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Addr())
		}})
		defer func() { _ = client.Close() }() // NewMaster uses its options only
		m, err := redlock.NewMaster(client)
		if err != nil {
			t.Fatal(err)
		}
		masters = append(masters, m)
	}
	return masters
}
