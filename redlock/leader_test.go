package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// withLeader returns three servers in an order in which the first leads the slots of "key", and a Locker that two may have the key of. It
// stays subscribed, so that its calls have a place in line from their first attempt on.
func withLeader(t *testing.T, net *simnet.Net) (leader int, others []int, l *redlock.Locker) {
	t.Helper()
	l = simLocker(t, net.Masters(), redlock.WithConcurrency(2))
	other := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
	wait := func(key string) (end func()) {
		held := []*redlock.Lock{mustLock(t, other, key), mustLock(t, other, key)}
		waits := make(chan error, 1)
		go func() {
			lock, err := l.Lock(context.WithoutCancel(t.Context()), key)
			if err == nil {
				err = lock.Unlock()
			}
			waits <- err
		}()
		leads := func(s *simnet.Server) bool { return s.Leads(key) }
		eventually(t, bound, "a leader has refused the call", func() bool { return slices.ContainsFunc(net.Servers, leads) })
		leader = slices.IndexFunc(net.Servers, leads)
		return func() {
			for _, lock := range held {
				mustUnlock(t, lock)
			}
			if err := <-waits; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(wait("subscribed"))
	wait("key")()
	time.Sleep(10 * time.Second) // the slots of the key aren't watched any more
	return leader, slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == leader }), l
}

// TestLeaderDecides: no call takes a slot that the leader refuses, whether that answers first or last: it may have offered the slot to the
// first in line.
func TestLeaderDecides(t *testing.T) {
	for name, delay := range map[string]time.Duration{"first": 0, "last": 10 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				leader, _, l := withLeader(t, net)
				net.Servers[leader].Give("key", "stranger", time.Minute, 0, 1)
				net.Addresses[leader].Set(simnet.Weather{Delay: delay})
				var held *redlock.HeldError
				if _, err := l.TryLock(t.Context(), "key"); !errors.As(err, &held) {
					t.Errorf("a slot that the leader refuses: %v", err)
				}
			})
		})
	}
}

// TestSlotOfTheDead: who waits for a slot asks for it as soon as its lease is over on the leader, which wakes nobody then.
func TestSlotOfTheDead(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		_, _, l := withLeader(t, net)
		const lease = 2500 * time.Millisecond
		for _, s := range net.Servers {
			s.Give("key", "dead", lease, 0, 1)
		}
		ends := time.Now().Add(lease)
		time.Sleep(100 * time.Millisecond)
		lock := mustLock(t, l, "key")
		if late := time.Since(ends); late < 0 || late > 100*time.Millisecond {
			t.Errorf("the slot was taken %v after the lease, want at once", late)
		}
		mustUnlock(t, lock)
	})
}

// TestPlacesOfSlots: who has a slot has no place in line, also where a master has refused it, before or after the others have granted it.
func TestPlacesOfSlots(t *testing.T) {
	for name, answersLast := range map[string]bool{"refused first": false, "refused last": true} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				_, others, l := withLeader(t, net)
				refuses := others[0]
				net.Servers[refuses].Give("key", "stranger", time.Hour, 0, 1)
				for i, a := range net.Addresses {
					if (i == refuses) == answersLast {
						a.Set(simnet.Weather{Delay: 5 * time.Millisecond})
					}
				}
				waits := func() bool { return slices.Contains(net.Servers[refuses].Keys(), "redlock:{key}:queue") }
				locks := []*redlock.Lock{mustLock(t, l, "key"), mustLock(t, l, "key")}
				time.Sleep(100 * time.Millisecond)
				if waits() != answersLast {
					t.Errorf("places in line: %q", net.Servers[refuses].Keys())
				}
				next := make(chan *redlock.Lock)
				go func() { next <- mustLock(t, l, "key") }()
				time.Sleep(100 * time.Millisecond)
				mustUnlock(t, locks[0])
				mustUnlock(t, <-next)
				mustUnlock(t, locks[1])
				time.Sleep(100 * time.Millisecond)
				if waits() {
					t.Errorf("places in line that nobody wants: %q", net.Servers[refuses].Keys())
				}
			})
		})
	}
}

// TestSlotIsHandedOn: a call in line gets the slot of a call of its process by the commands that release that, as nobody else has a place.
func TestSlotIsHandedOn(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		_, _, l := withLeader(t, net)
		locks := []*redlock.Lock{mustLock(t, l, "key"), mustLock(t, l, "key")}
		next := make(chan *redlock.Lock)
		go func() { next <- mustLock(t, l, "key") }()
		time.Sleep(100 * time.Millisecond)
		before := net.Servers[0].Calls(simnet.Release)
		mustUnlock(t, locks[0])
		lock := <-next
		if n := net.Servers[0].Calls(simnet.Release) - before; n > 0 {
			t.Errorf("%d commands were for the release alone", n)
		}
		mustUnlock(t, lock)
		mustUnlock(t, locks[1])
	})
}

// TestOfferIsGivenBack: a slot that the leader has lost, and offers to a process which knows that it has a holder, isn't kept from others once
// it is free.
func TestOfferIsGivenBack(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		leader, _, l := withLeader(t, net)
		other := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		lost, held := mustLock(t, l, "key"), mustLock(t, other, "key")
		time.Sleep(10 * time.Second) // the slots aren't watched any more
		net.Servers[leader].Delete("key", lost.Slot())
		if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("a third call: %v", err)
		}
		time.Sleep(time.Millisecond) // what it gives back has arrived
		_ = lost.Unlock()
		lock, err := other.TryLock(t.Context(), "key")
		if err != nil {
			t.Fatalf("the slot is free: %v", err)
		}
		mustUnlock(t, lock)
		mustUnlock(t, held)
	})
}

// TestLeaseOutlivesOutages: a lease outlives the absence of all masters for half of the TTL, whenever that begins.
func TestLeaseOutlivesOutages(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		lock := mustLock(t, simLocker(t, net.Masters()), "key")
		for range 40 {
			time.Sleep(simTTL + simTTL/16)
			for _, a := range net.Addresses {
				a.Set(simnet.Weather{Requests: true})
			}
			time.Sleep(simTTL / 2)
			for _, a := range net.Addresses {
				a.Set(simnet.Weather{})
			}
			if err := lock.Err(); err != nil {
				t.Fatal(err)
			}
		}
		mustUnlock(t, lock)
	})
}

// TestMemoryIsAskedUnderLoad: how much memory the masters use is asked again, however busy they are.
func TestMemoryIsAskedUnderLoad(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		net.Addresses[0].Set(simnet.Weather{Delay: 10 * time.Millisecond})
		end := make(chan struct{})
		t.Cleanup(func() { close(end) })
		for i := range 8 { // something is under way at each moment
			go func() {
				time.Sleep(time.Duration(i+1) * time.Millisecond)
				for {
					select {
					case <-end:
						return
					default:
						if lock, err := l.TryLock(t.Context(), string(rune('a'+i))); err == nil {
							_ = lock.Unlock()
						}
					}
				}
			}()
		}
		time.Sleep(20 * time.Second)
		if n := net.Servers[0].Calls(simnet.Memory); n == 0 {
			t.Error("nobody has asked in 20 seconds")
		}
	})
}

// leaderless has every master that is to lead answer with an error, as where the key of the slots has another type.
func leaderless(net *simnet.Net) {
	for _, s := range net.Servers {
		s.Forge(func(cmd *simnet.Command) (forged bool) {
			if forged = cmd.Op == simnet.Acquire && cmd.Leads; forged {
				cmd.Reply.Err = protocol.Mark(errors.New("WRONGTYPE"), protocol.ErrRefused)
			}
			return forged
		})
	}
}

// TestSlotsWithoutLeader: a call that no leader tells which slot is free asks for one after the other, of each of its keys.
func TestSlotsWithoutLeader(t *testing.T) {
	const n = 4
	for name, ask := range map[string]func(l *redlock.Locker, key string) (*redlock.Lock, error){
		"waits": func(l *redlock.Locker, key string) (*redlock.Lock, error) {
			return l.Lock(context.Background(), key, redlock.WithWait(time.Second))
		},
		"waits for several keys": func(l *redlock.Locker, key string) (*redlock.Lock, error) {
			return l.LockAll(context.Background(), []string{key, key + ", too"}, redlock.WithWait(2*time.Second))
		},
		"tries": func(l *redlock.Locker, key string) (*redlock.Lock, error) {
			return l.TryLock(context.Background(), key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				l := simLocker(t, net.Masters(), redlock.WithConcurrency(n))
				leaderless(net)
				for free := range n {
					taken := slices.DeleteFunc([]int{0, 1, 2, 3}, func(slot int) bool { return slot == free })
					key := fmt.Sprint("key", free)
					for _, s := range net.Servers {
						s.Give(key, "stranger", time.Hour, taken...)
						s.Give(key+", too", "stranger", time.Hour, taken...)
					}
					lock, err := ask(l, key)
					if err != nil {
						t.Errorf("slot %d is free: %v", free, err)
						continue
					}
					if lock.Slot() != free {
						t.Errorf("has slot %d, where only slot %d is free", lock.Slot(), free)
					}
					mustUnlock(t, lock)
				}
			})
		})
	}
}

// TestLineWithoutLeader: without a leader, too, all get on, and never more have the key than may.
func TestLineWithoutLeader(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		lockers := []*redlock.Locker{simLocker(t, net.Masters(), redlock.WithConcurrency(3)), simLocker(t, net.Masters(), redlock.WithConcurrency(3))}
		leaderless(net)
		var c census
		c.run(t, 3, 10, lockers...)
		if c.most < 3 {
			t.Errorf("at most %d at once", c.most)
		}
		net.RequireNoKeys(t)
	})
}
