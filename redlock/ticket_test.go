package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
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
		if off := time.Until(mustInspect(t, l, "key").Masters[0].Queue[0].Since) - time.Minute; off.Abs() > time.Second {
			t.Errorf("the ticket is %v off the master's clock", off)
		}
		mustUnlock(t, held)
		mustUnlock(t, <-waiter)
	})
}

// TestTryHasNoTicket: not even while it is under way, from a process that hears what masters publish.
func TestTryHasNoTicket(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		ways := ownNetwork(net)
		l, other := simLocker(t, net.Masters()), simLocker(t, net.Masters(ways...))
		tried, waited := mustLock(t, l, "tried"), mustLock(t, l, "waited")
		waiter := make(chan *redlock.Lock)
		go func() { waiter <- mustLock(t, other, "waited") }()
		time.Sleep(time.Second) // it has subscribed
		for _, w := range ways {
			w.Set(simnet.Weather{Delay: 5 * time.Millisecond})
		}
		refused := make(chan *redlock.Lock)
		go func() { refused <- tryLock(t, other, "tried") }()
		stays(t, 100*time.Millisecond, "nobody waits", func() bool { return len(mustInspect(t, l, "tried").Masters[0].Queue) == 0 })
		if lock := <-refused; lock != nil {
			t.Error("the key was held")
		}
		mustUnlock(t, tried)
		mustUnlock(t, waited)
		mustUnlock(t, <-waiter)
	})
}

// TestTicketOutlastsNoRefusal: masters refuse to take back a ticket, more than once. It is gone soon after they do, and not when its lease ends.
func TestTicketOutlastsNoRefusal(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l, other := simLocker(t, net.Masters()), simLocker(t, net.Masters())
		held := mustLock(t, l, "key")
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := other.Lock(ctx, "key"); left <- err }()
		queued(t, l, "key", 1)
		toAll(net, func(s *simnet.Server) { s.Refuse("WRONGTYPE Operation against a key", simnet.Release) })
		cancel()
		<-left
		time.Sleep(4 * link.OwedGap)
		queued(t, l, "key", 1)
		toAll(net, func(s *simnet.Server) { s.Refuse("") })
		time.Sleep(2 * link.OwedGap)
		for _, m := range mustInspect(t, l, "key").Masters {
			if len(m.Queue) > 0 {
				t.Errorf("%s still has the ticket", m.Name)
			}
		}
		mustUnlock(t, held)
	})
}

// TestOwnReleaseComesLate: a call is refused because of a lock that its own process has freed, and that the masters haven't heard of yet. No
// master wakes it when they do, as nobody else has freed the key; so it looks again by itself.
func TestOwnReleaseComesLate(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		ways := ownNetwork(net)
		l := simLocker(t, net.Masters(ways...))
		held := mustLock(t, l, "key")
		for _, w := range ways {
			w.Set(simnet.Weather{Requests: true})
		}
		_ = held.Unlock()
		for _, w := range ways {
			w.Cut()
			w.Set(simnet.Weather{})
		}
		freed := time.Now()
		mustUnlock(t, mustLock(t, l, "key"))
		if took := time.Since(freed); took > time.Second {
			t.Errorf("it has the lock after %v, want soon after the releases are repeated", took)
		}
	})
}
