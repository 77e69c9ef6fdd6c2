package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// refusedFor has all servers say that another holds each key, for so long.
func refusedFor(net *simnet.Net, rest time.Duration) {
	for _, s := range net.Servers {
		s.Forge(func(cmd *simnet.Command) bool {
			if cmd.Op != simnet.Acquire {
				return false
			}
			cmd.Reply = protocol.Reply{Status: protocol.StatusHeld, Holder: "nobody", TTL: rest, Time: time.Now().UnixMicro()}
			return true
		})
	}
}

// TestRates lists how often each loop asks each master within a minute, at least and at most.
func TestRates(t *testing.T) {
	slots := []redlock.LockOption{redlock.WithConcurrency(3)}
	short := []redlock.LockOption{redlock.WithTTL(600 * time.Millisecond)}
	for name, c := range map[string]struct {
		calls       int // that wait, for different keys
		opts        []redlock.LockOption
		make        func(net *simnet.Net)
		op          simnet.Op
		least, most int
	}{
		"waits, a lease that has no end":       {1, nil, func(net *simnet.Net) { refusedFor(net, -time.Millisecond) }, simnet.Acquire, 60, 1200},
		"waits, a lease that is always over":   {1, nil, func(net *simnet.Net) { refusedFor(net, time.Millisecond) }, simnet.Acquire, 60, 1200},
		"waits for a slot, leases without end": {1, slots, func(net *simnet.Net) { refusedFor(net, -time.Millisecond) }, simnet.Acquire, 60, 1200},
		"waits, a long lease":                  {1, nil, func(net *simnet.Net) { refusedFor(net, time.Hour) }, simnet.Acquire, 18, 20},
		"waits with a short TTL, a long lease": {1, short, func(net *simnet.Net) { refusedFor(net, time.Hour) }, simnet.Acquire, 300, 1200},
		"waits, an error for the key": {1, nil, func(net *simnet.Net) {
			toAll(net, func(s *simnet.Server) { s.Refuse("WRONGTYPE Operation against a key", simnet.Acquire) })
		}, simnet.Acquire, 60, 1200},
		"releases of a waiting call, errors for the key": {1, nil, func(net *simnet.Net) {
			toAll(net, func(s *simnet.Server) { s.Refuse("WRONGTYPE Operation against a key", simnet.Acquire, simnet.Release) })
		}, simnet.Release, 0, 1200},
		"waits, masters that refuse connections": {1, nil, func(net *simnet.Net) { toAll(net, (*simnet.Server).Kill) }, simnet.Acquire, 0, 1200},
		"thousands wait, two masters are down":   {manyWait, nil, func(net *simnet.Net) { toOthers(net, (*simnet.Server).Kill) }, simnet.Acquire, 60, 1200},
		"thousands wait, two masters hang":       {manyWait, nil, func(net *simnet.Net) { toOthers(net, (*simnet.Server).Hang) }, simnet.Acquire, 60, 1200},
		"thousands wait, two masters are full":   {manyWait, nil, func(net *simnet.Net) { toOthers(net, (*simnet.Server).Fill) }, simnet.Acquire, 60, 1200},
		"beats":                                  {0, nil, func(*simnet.Net) {}, simnet.Beat, 29, 32},
		"probes of idle masters":                 {0, nil, func(*simnet.Net) {}, simnet.Ping, 0, 60},
		"trials of full masters":                 {1, nil, func(net *simnet.Net) { toAll(net, (*simnet.Server).Fill) }, simnet.Trial, 10, 61},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				l := simLocker(t, net.Masters())
				lockUnlock(t, l, "before")
				c.make(net)
				ctx, cancel := context.WithCancel(t.Context())
				var calls sync.WaitGroup
				for i := range c.calls {
					calls.Go(func() { _, _ = l.Lock(ctx, fmt.Sprint(i), c.opts...) })
				}
				time.Sleep(5 * time.Second)
				counts := func() (n [3]int) {
					for i, s := range net.Servers {
						n[i] = s.Calls(c.op)
					}
					return n
				}
				before := counts()
				time.Sleep(time.Minute)
				n := 0 // of the master that is asked most
				for i, after := range counts() {
					n = max(n, after-before[i])
				}
				if n < c.least || n > c.most {
					t.Errorf("%d times a minute, want %d to %d", n, c.least, c.most)
				}
				cancel()
				calls.Wait()
			})
		})
	}
}

// manyWait is how many wait where thousands may.
const manyWait = 300

// toOthers does it to all servers but the first.
func toOthers(net *simnet.Net, do func(*simnet.Server)) {
	for _, s := range net.Servers[1:] {
		do(s)
	}
}

func toAll(net *simnet.Net, do func(*simnet.Server)) {
	for _, s := range net.Servers {
		do(s)
	}
}

// TestNoPlaceNoAcquire: far masters get nothing to do from calls that leave without having asked. Those leave nothing, and what has been left
// before is withdrawn.
func TestNoPlaceNoAcquire(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l, other := simLocker(t, net.Masters()), simLocker(t, net.Masters())
		lockUnlock(t, l, "before")
		for _, a := range net.Addresses {
			a.Set(simnet.Weather{Delay: 40 * time.Millisecond})
		}
		lockUnlock(t, l, "before") // now they are known to be far
		held := mustLock(t, other, "held")
		const calls = 5000
		asked := func() int { return net.Servers[0].Calls(simnet.Acquire) }
		before := asked()
		var all sync.WaitGroup
		var got, busy, met atomic.Int32
		for i := range calls {
			all.Go(func() {
				key := fmt.Sprint(i)
				if i == 0 {
					key = "held"
				}
				lock, err := l.Lock(t.Context(), key, redlock.WithWait(time.Second))
				switch {
				case err == nil:
					got.Add(1)
					_ = lock.Unlock()
				case !errors.Is(err, context.DeadlineExceeded):
					t.Error(err)
				case errors.Is(err, redlock.ErrBusy):
					busy.Add(1)
				default: // others, or a late reply
					met.Add(1)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second)
		if n := asked() - before; n > 900 || got.Load() < 200 || busy.Load() < calls/2 {
			t.Errorf("%d acquires, by which %d calls got their lock; %d had no place, and %d met something else", n, got.Load(), busy.Load(), met.Load())
		}
		for _, s := range net.Servers {
			if keys := s.Keys(); len(keys) != 1 {
				t.Errorf("%s has %q, want only what is held", s, keys)
			}
		}
		mustUnlock(t, held)
	})
}
