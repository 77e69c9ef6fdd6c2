package redlock_test

import (
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestFirstTicket: a process whose clock is a minute behind gets its place by the master's clock from its first
// call on, although no master has reported its time when that call comes.
func TestFirstTicket(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		net.Servers[0].SetClock(time.Minute)
		l := simLocker(t, net.Masters())
		held := mustLock(t, l, "key")
		fresh := simLocker(t, net.Masters())
		waiter := make(chan *redlock.Lock)
		go func() { waiter <- mustLock(t, fresh, "key") }()
		queued(t, l, "key", 1)
		if off := time.Until(inspect(t, l, "key").Masters[0].Queue[0].Since) - time.Minute; off.Abs() > time.Second {
			t.Errorf("the ticket is %v off the master's clock", off)
		}
		mustUnlock(t, held)
		mustUnlock(t, <-waiter)
	})
}
