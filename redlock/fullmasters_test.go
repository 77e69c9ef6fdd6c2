package redlock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
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

func setMaxMemory(t *testing.T, s *redistest.Server, bytes string) {
	t.Helper()
	if err := s.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestFullMasterIsNotAvailable: that a server renews leases doesn't say that it takes locks.
func TestFullMasterIsNotAvailable(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	servers := redistest.Start(t, 3)
	var d diary
	l := newLocker(t, redistest.URLs(servers), d.option(), redlock.WithTTL(ttl))
	for i := range 10 { // whose renewals come one after the other
		held := mustLock(t, l, string(rune('a'+i)))
		defer func() { _ = held.Unlock() }()
		time.Sleep(ttl / 30)
	}
	setMaxMemory(t, servers[0], "1")
	for began := time.Now(); time.Since(began) < 3*ttl; time.Sleep(20 * time.Millisecond) {
		if lock, err := l.TryLock(t.Context(), "order:1"); err == nil {
			_ = lock.Unlock()
		}
	}
	full := servers[0].URL()
	d.expect(t, "down", full, nil)
	downs, ups := d.find("down", full, nil), d.find("up", full, nil)
	for len(downs) > 1 && len(ups) > 0 && !strings.Contains(downs[0].err.Error(), "OOM") { // a busy machine had it hang before
		downs, ups = downs[1:], ups[1:]
	}
	if len(ups) > 0 {
		t.Errorf("the server refuses every lock; it was said to be down %d times, and available again %d times", len(downs), len(ups))
	}
	setMaxMemory(t, servers[0], "0")
}
