package redlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// holdings is a Locker on three masters, and who is told how its locks end.
type holdings struct {
	*redlock.Locker
	t       *testing.T
	servers []*farServer
	away    [3]atomic.Bool // the network loses what is sent to the master
	unheard [3]atomic.Bool // and what it answers
	there   delay
	log     logBook
	diary   diary
	waiting sync.WaitGroup
}

func newHoldings(t *testing.T) *holdings {
	h := &holdings{t: t, servers: farServers(3)}
	h.Locker = lockerOn(t, view(h.servers, func(m *farMaster) {
		i := slices.Index(h.servers, m.farServer)
		m.there, m.lost, m.unheard = h.there.get, h.away[i].Load, h.unheard[i].Load
	}), h.log.option(), h.diary.option())
	time.Sleep(time.Second) // the first connections are made
	return h
}

func all(masters *[3]atomic.Bool, value bool) {
	for i := range masters {
		masters[i].Store(value)
	}
}

// lose has masters lose a key, as by DEL or an eviction.
func (h *holdings) lose(key string, masters ...int) {
	for _, i := range masters {
		h.servers[i].mu.Lock()
		h.servers[i].Stepwise.(*memory.Master).Leases.Delete(key)
		h.servers[i].mu.Unlock()
	}
}

// steal has all masters grant a key to another.
func (h *holdings) steal(key string) {
	for _, s := range h.servers {
		s.mu.Lock()
		s.Stepwise.(*memory.Master).Leases.Set(key, "another", time.Now(), time.Hour)
		s.mu.Unlock()
	}
}

// untilJustBeforeItsEnd waits, while nothing is renewed.
func (h *holdings) untilJustBeforeItsEnd(lock *redlock.Lock) {
	all(&h.away, true)
	time.Sleep(time.Until(lock.Until()) - 10*time.Millisecond)
	all(&h.away, false)
}

const (
	keyA = "redlock:{a}"
	keyB = "redlock:{b}"
)

// TestToldOnceHowItEnded: whoever finds that a lock was lost, the log, the Observer and the error of Unlock say so, each once. Of a lock that
// was held until its release nobody says that, whatever becomes of the replies.
func TestToldOnceHowItEnded(t *testing.T) {
	unlock := (*redlock.Lock).Unlock
	for name, c := range map[string]struct {
		keys   []string // besides a
		opts   []redlock.LockOption
		ends   func(h *holdings, lock *redlock.Lock)
		unlock func(*redlock.Lock) error // nil for Unlock
		want   inside.End
		is     []error
	}{
		"released":            {want: inside.EndReleased},
		"gone on one master":  {ends: func(h *holdings, _ *redlock.Lock) { h.lose(keyA, 0) }, want: inside.EndReleased},
		"gone on a majority":  {ends: func(h *holdings, _ *redlock.Lock) { h.lose(keyA, 0, 2) }, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"another has the key": {ends: func(h *holdings, _ *redlock.Lock) { h.steal(keyA) }, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrNotOwner}},
		"one key of two is gone": {keys: []string{"b"}, ends: func(h *holdings, _ *redlock.Lock) { h.lose(keyB, 0, 1, 2) },
			want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"one key of two is gone, and the other one not confirmed": {keys: []string{"b"}, ends: func(h *holdings, _ *redlock.Lock) {
			h.unheard[0].Store(true)
			h.lose(keyA, 1)
			h.lose(keyB, 1, 2)
		}, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"a slot is gone": {opts: []redlock.LockOption{redlock.WithConcurrency(3)}, ends: func(h *holdings, lock *redlock.Lock) {
			h.lose(protocol.SlotKey(keyA, lock.Slot()), 0, 1, 2)
		}, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"handed on": {ends: func(h *holdings, _ *redlock.Lock) { h.next(inside.ViaPassed) }, want: inside.EndReleased},
		"gone, and handed on": {ends: func(h *holdings, _ *redlock.Lock) {
			h.next(inside.ViaPassed)
			h.lose(keyA, 0, 1, 2)
		}, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"a slot is gone, and handed on": {opts: []redlock.LockOption{redlock.WithConcurrency(2)}, ends: func(h *holdings, lock *redlock.Lock) {
			mustLock(h.t, h.Locker, "a", redlock.WithConcurrency(2)) // the other one
			h.next("", redlock.WithConcurrency(2))
			h.lose(protocol.SlotKey(keyA, lock.Slot()), 0, 1, 2)
		}, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"gone, with a result": {ends: func(h *holdings, _ *redlock.Lock) { h.lose(keyA, 0, 1, 2) },
			unlock: func(lock *redlock.Lock) error { return lock.UnlockWith(nil, time.Hour) },
			want:   inside.EndGone, is: []error{redlock.ErrNotRemembered, redlock.ErrLost, redlock.ErrExpired}},
		"gone, with a long result": {ends: func(h *holdings, _ *redlock.Lock) { h.lose(keyA, 0, 1, 2) },
			unlock: func(lock *redlock.Lock) error { return lock.UnlockWith(make([]byte, 1<<16), time.Hour) },
			want:   inside.EndGone, is: []error{redlock.ErrNotRemembered, redlock.ErrLost, redlock.ErrExpired}},
		"released, with a result": {unlock: func(lock *redlock.Lock) error { return lock.UnlockWith(nil, time.Hour) }, want: inside.EndReleased},
		"gone, and unlocked by several at once": {ends: func(h *holdings, lock *redlock.Lock) {
			h.lose(keyA, 0, 1, 2)
			for range 3 {
				h.waiting.Go(func() { _ = lock.Unlock() })
			}
		}, want: inside.EndGone, is: []error{redlock.ErrLost, redlock.ErrExpired}},

		"the masters are away": {ends: func(h *holdings, _ *redlock.Lock) { all(&h.away, true) },
			want: inside.EndUnconfirmed, is: []error{redlock.ErrNoQuorum}},
		"the replies are lost, and the release repeated": {ends: func(h *holdings, _ *redlock.Lock) { all(&h.unheard, true) },
			want: inside.EndUnconfirmed, is: []error{redlock.ErrNoQuorum}},
		"a reply is lost, and the release repeated": {ends: func(h *holdings, _ *redlock.Lock) {
			h.unheard[1].Store(true)
			h.lose(keyA, 2)
		}, want: inside.EndUnconfirmed, is: []error{redlock.ErrNoQuorum}},
		"the release is late, and comes after the end of the lease": {ends: func(h *holdings, lock *redlock.Lock) {
			h.untilJustBeforeItsEnd(lock)
			h.there.set(500 * time.Millisecond)
		}, want: inside.EndUnconfirmed, is: []error{redlock.ErrNoQuorum}},
		"the release is late, and another has the key": {ends: func(h *holdings, lock *redlock.Lock) {
			h.untilJustBeforeItsEnd(lock)
			h.there.set(500 * time.Millisecond)
			time.AfterFunc(450*time.Millisecond, func() { h.steal(keyA) })
		}, want: inside.EndUnconfirmed, is: []error{redlock.ErrNoQuorum}},

		"not renewed": {ends: func(h *holdings, lock *redlock.Lock) {
			h.untilJustBeforeItsEnd(lock)
			all(&h.away, true)
			time.Sleep(time.Second)
			all(&h.away, false)
		}, want: inside.EndExpired, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"not renewed, on two keys": {keys: []string{"b"}, ends: func(h *holdings, lock *redlock.Lock) {
			all(&h.away, true)
			time.Sleep(longTTL)
		}, want: inside.EndExpired, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"a renewal is refused": {ends: func(h *holdings, _ *redlock.Lock) {
			h.steal(keyA)
			time.Sleep(longTTL / 2)
		}, want: inside.EndTaken, is: []error{redlock.ErrLost, redlock.ErrExpired}},
		"gone at the end of its max hold": {opts: []redlock.LockOption{redlock.WithMaxHold(time.Second)}, ends: func(h *holdings, lock *redlock.Lock) {
			h.lose(keyA, 0, 1, 2)
			time.Sleep(time.Until(lock.Until())) // the timer runs out at the moment of Unlock
		}, want: inside.EndMaxHold, is: []error{redlock.ErrMaxHold, redlock.ErrLost, redlock.ErrExpired}},
		"released by force": {ends: func(h *holdings, lock *redlock.Lock) { mustForce(h.t, h.Locker, "a", lock.Fence()) },
			want: inside.EndForced, is: []error{redlock.ErrForced, redlock.ErrLost, redlock.ErrExpired}},
		"closed": {ends: func(h *holdings, _ *redlock.Lock) { mustClose(h.t, h.Locker) }, want: inside.EndClosed, is: []error{redlock.ErrClosed, redlock.ErrExpired}},
		"gone, and closed": {ends: func(h *holdings, _ *redlock.Lock) {
			h.lose(keyA, 0, 1, 2)
			mustClose(h.t, h.Locker)
		}, want: inside.EndClosed, is: []error{redlock.ErrClosed, redlock.ErrExpired}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHoldings(t)
				lock, err := h.LockAll(t.Context(), append([]string{"a"}, c.keys...), c.opts...)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // all masters have it
				if end := inside.EndOf(lock); end != "" {
					t.Errorf("ended as %q while it is held", end)
				}
				if c.ends != nil {
					c.ends(h, lock)
				}
				if c.unlock == nil {
					c.unlock = unlock
				}
				err = c.unlock(lock)
				h.waiting.Wait()
				h.there.set(0)
				all(&h.unheard, false)
				time.Sleep(5 * time.Second) // releases are repeated
				synctest.Wait()

				lost := errors.Is(err, redlock.ErrLost)
				if end := inside.EndOf(lock); end != c.want || end.Lost() != lost {
					t.Errorf("ended as %q with %v, want %q", end, err, c.want)
				}
				if (err != nil) != (len(c.is) > 0) {
					t.Errorf("Unlock: %v, want one that matches %v", err, c.is)
				}
				for _, want := range c.is {
					if !errors.Is(err, want) {
						t.Errorf("Unlock: %v, want one that matches %v", err, want)
					}
				}
				told := h.diary.find("lost", "", nil)
				logged := h.log.lines("lease lost")
				if !lost {
					if len(told)+len(logged) > 0 {
						t.Errorf("nothing is lost, and told are %v, and logged %q", told, logged)
					}
					return
				}
				if len(told) != 1 || !errors.Is(told[0].err, redlock.ErrLost) || !strings.Contains(err.Error(), strings.TrimPrefix(told[0].err.Error(), "redlock: ")) {
					t.Errorf("told are %v, want the loss once, as by Unlock: %v", told, err)
				}
				if len(logged) != 1 || !strings.Contains(logged[0], "key_hash="+lockname.Hash("a")) || !strings.Contains(logged[0], "fence=") {
					t.Errorf("logged %q, want one line with the key and the fence", logged)
				}
			})
		})
	}
}

// TestMastersLostAllData: once a process knows that most masters have lost their data, it says of a lock from before that it was lost. A master that
// has restarted may have the lock all the same.
func TestMastersLostAllData(t *testing.T) {
	flush, reboot := (*simnet.Server).Flush, (*simnet.Server).Reboot
	for name, c := range map[string]struct {
		lose  func(*simnet.Server)
		most  int
		after time.Duration // until the release; after 3 s, the process has noticed the loss
		want  inside.End
	}{
		"one":               {flush, 1, 3 * time.Second, inside.EndReleased},
		"two":               {flush, 2, 3 * time.Second, inside.EndGone},
		"all":               {flush, 3, 3 * time.Second, inside.EndGone},
		"all, just before":  {flush, 3, 0, inside.EndGone},
		"all, a bit before": {flush, 3, 100 * time.Millisecond, inside.EndGone},
		"all by a restart":  {reboot, 3, 3 * time.Second, inside.EndUnconfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var log logBook
				var diary diary
				l := simLocker(t, net.Masters(), log.option(), diary.option(), redlock.WithRestartGuard(simTTL+time.Second))
				lock := mustLock(t, l, "a")
				for _, s := range net.Servers[:c.most] {
					c.lose(s)
				}
				time.Sleep(c.after)
				err := lock.Unlock()
				synctest.Wait()
				if end := inside.EndOf(lock); end != c.want || end.Lost() != errors.Is(err, redlock.ErrLost) {
					t.Errorf("ended as %q: %v, want %q", end, err, c.want)
				}
				times := 0
				if c.want.Lost() {
					times = 1
				}
				if told, logged := diary.find("lost", "", nil), log.lines("lease lost, as its release has found"); len(told) != times || len(logged) != times {
					t.Errorf("told are %v, logged is %q, want %d of each", told, logged, times)
				}
			})
		})
	}
}

// next has another call of this process wait for the key, which gets its lock in a certain way, if that is given, and holds it until its
// release.
func (h *holdings) next(via string, opts ...redlock.LockOption) {
	h.waiting.Go(func() {
		next, err := h.Lock(context.Background(), "a", opts...)
		if err != nil {
			h.t.Error(err)
			return
		}
		if got := inside.AcquisitionOf(next).Via; via != "" && got != via {
			h.t.Errorf("the next one has it via %s, want %s", got, via)
		}
		if err := next.Unlock(); err != nil || inside.EndOf(next) != inside.EndReleased {
			h.t.Errorf("the next one ended as %q: %v", inside.EndOf(next), err)
		}
	})
	synctest.Wait()
}
