package redlock_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// denied returns addresses for a process that can neither subscribe nor publish.
func denied(net *simnet.Net) []*simnet.Address {
	own := ownNetwork(net)
	for _, a := range own {
		a.Deny(true)
	}
	return own
}

// TestPollingProcessHasItsShare: a process that can neither be woken nor wake others gets its turns beside processes
// that can, and they get theirs.
func TestPollingProcessHasItsShare(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const callers = 4
		one, polling := simLocker(t, net.Masters()), simLocker(t, net.Masters(denied(net)...))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		take := func(l *redlock.Locker) (turns int) {
			for {
				lock, err := l.Lock(ctx, "key")
				if err != nil {
					return turns
				}
				turns++
				time.Sleep(time.Millisecond)
				mustUnlock(t, lock)
			}
		}
		var others, its int
		var all sync.WaitGroup
		all.Go(func() { its = take(polling) })
		turns := make(chan int)
		for range callers {
			all.Go(func() { turns <- take(one) })
		}
		for range callers {
			others += <-turns
		}
		all.Wait()
		t.Logf("%d turns of %d callers, %d of the polling one", others, callers, its)
		if its < 20 || others < 20 || others > 10*callers*its {
			t.Errorf("%d turns of %d callers, %d of the polling one: want at least a tenth of a caller's", others, callers, its)
		}
		net.RequireNoKeys(t)
	})
}

// waitsOn reports whether somebody waits for the key on each server.
func waitsOn(net *simnet.Net) bool {
	return !slices.ContainsFunc(net.Servers, func(s *simnet.Server) bool { return !slices.Contains(s.Keys(), redisKey("key")+":queue") })
}

// TestPollingProcessLeavesNothing: such a process leaves no ticket when it gives up.
func TestPollingProcessLeavesNothing(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		one, polling := simLocker(t, net.Masters()), simLocker(t, net.Masters(denied(net)...))
		held := mustLock(t, one, "key")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _, _ = polling.Lock(ctx, "key") })
		eventually(t, bound, "a place on each master", func() bool { return waitsOn(net) })
		cancel()
		all.Wait()
		time.Sleep(10 * time.Millisecond)
		for _, s := range net.Servers {
			if keys := s.Keys(); len(keys) != 1 {
				t.Errorf("%s has %q, want only that of the lock", s, keys)
			}
		}
		mustUnlock(t, held)
		net.RequireNoKeys(t)
	})
}

// TestDeadPollerIsPassed: the ticket of a polling process that has died ends long before that of another would.
func TestDeadPollerIsPassed(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		one, other := simLocker(t, net.Masters()), simLocker(t, net.Masters())
		own := denied(net)
		polling := simLocker(t, net.Masters(own...))
		held := mustLock(t, one, "key")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _, _ = polling.Lock(ctx, "key") })
		eventually(t, bound, "a place on each master", func() bool { return waitsOn(net) })
		for _, a := range own {
			a.Set(simnet.Weather{Requests: true, Replies: true, Away: true})
			a.Cut()
		}
		died := time.Now()
		mustUnlock(t, held)
		mustUnlock(t, mustLock(t, other, "key"))
		if took := time.Since(died); took > 2*protocol.PollLease {
			t.Errorf("it is passed after %v, want soon after %v", took, protocol.PollLease)
		}
		cancel()
		all.Wait()
	})
}

// TestPollingEnds: a process that polls, for lack of a right, says so, and is woken once it has what it says that it needs.
func TestPollingEnds(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		var log logBook
		own := denied(net)
		one, polling := simLocker(t, net.Masters()), simLocker(t, net.Masters(own...), log.option())
		turn := func() redlock.Via {
			held := mustLock(t, one, "key")
			via := make(chan redlock.Via)
			go func() {
				lock := mustLock(t, polling, "key")
				via <- lock.Acquisition().Via
				mustUnlock(t, lock)
			}()
			time.Sleep(time.Second)
			mustUnlock(t, held)
			return <-via
		}
		if via := turn(); via == redlock.ViaWoken {
			t.Error("woken without a subscription")
		}
		log.expect(t, "level=WARN", "denies SUBSCRIBE", "grant this user +subscribe and the channels of the prefix")
		for _, a := range own {
			a.Deny(false)
		}
		turn()
		if via := turn(); via != redlock.ViaWoken {
			t.Errorf("with the right, a turn is %v", via)
		}
	})
}
