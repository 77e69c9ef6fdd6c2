package redlock_test

import (
	"testing"
	"time"

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
