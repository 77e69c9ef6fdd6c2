package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// census counts who holds a key.
type census struct {
	mu     sync.Mutex
	now    int
	most   int
	bySlot map[int]int
	twice  bool // a slot had two holders
	order  []int
}

// enter notes a holder, and returns what notes its end.
func (c *census) enter(lock *redlock.Lock, call int) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bySlot == nil {
		c.bySlot = make(map[int]int)
	}
	c.now++
	c.most = max(c.most, c.now)
	c.bySlot[lock.Slot()]++
	c.twice = c.twice || c.bySlot[lock.Slot()] > 1
	c.order = append(c.order, call)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
		c.bySlot[lock.Slot()]--
	}
}

// run has calls hold the key, so many at a time in the view of each Locker, and fails unless at most so many did, and none twice.
func (c *census) run(t *testing.T, most, calls int, lockers ...*redlock.Locker) {
	t.Helper()
	var all sync.WaitGroup
	for i := range calls {
		for _, l := range lockers {
			all.Go(func() {
				if err := l.Do(t.Context(), "key", func(_ context.Context, lock *redlock.Lock) error {
					leave := c.enter(lock, i)
					time.Sleep(2 * time.Millisecond)
					leave()
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if c.most > most || c.twice || len(c.order) != calls*len(lockers) {
		t.Errorf("%d calls had the key, at most %d at once, a slot twice: %t; want %d, %d", len(c.order), c.most, c.twice, calls*len(lockers), most)
	}
}

// TestConcurrency: over two processes there are as many holders of a key as it may have, and never more.
func TestConcurrency(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		first := simLocker(t, net.Masters(), redlock.WithConcurrency(3))
		var c census
		c.run(t, 3, 60, first, simLocker(t, net.Masters(), redlock.WithConcurrency(3)))
		if c.most != 3 {
			t.Errorf("at most %d at once", c.most)
		}
	})
}

// TestConcurrencyDiffers: a process with one slot, one with two and one with four never have more than four together, and all get on.
func TestConcurrencyDiffers(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		one := simLocker(t, net.Masters())
		two := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		four := simLocker(t, net.Masters(), redlock.WithConcurrency(4))
		var c census
		c.run(t, 4, 30, one, two, four)
	})
}

// TestConcurrencyInCluster: all slots of a key, and its line, are on one node.
func TestConcurrencyInCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	var c census
	c.run(t, 3, 20, onCluster(t, nodes, redlock.WithConcurrency(3)), onCluster(t, nodes, redlock.WithConcurrency(3)))
}

// TestConcurrencyShrinks: a process with fewer slots takes those that it knows, as they become free, and none beyond.
func TestConcurrencyShrinks(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		former := simLocker(t, net.Masters(), redlock.WithConcurrency(3))
		latter := simLocker(t, net.Masters(), redlock.WithConcurrency(1))
		locks := make([]*redlock.Lock, 3)
		for range locks {
			lock := mustLock(t, former, "key")
			locks[lock.Slot()] = lock
		}
		_, err := former.TryLock(t.Context(), "key")
		var held *redlock.HeldError
		if !errors.As(err, &held) || held.Slots != 3 || held.RetryAfter <= 0 {
			t.Errorf("a fourth: %v", err)
		}
		for _, slot := range []int{2, 1} {
			mustUnlock(t, locks[slot])
			if _, err := latter.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("slot %d is free, and a process with one slot has a lock: %v", slot, err)
			}
		}
		mustUnlock(t, locks[0])
		mustUnlock(t, mustLock(t, latter, "key"))
	})
}

// queued waits until so many wait for the key on each master.
func queued(t *testing.T, l *redlock.Locker, key string, n int) {
	t.Helper()
	eventually(t, bound, "all wait on each master", func() bool {
		seen, err := inspect.Key(t.Context(), l, key)
		return err == nil && !slices.ContainsFunc(seen.Masters, func(m inspect.Master) bool { return len(m.Queue) != n })
	})
}

// TestConcurrencyInLine: over two processes, those that wait have a slot in the order in which they came, whichever becomes free.
func TestConcurrencyInLine(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const n, calls = 3, 12
		first := simLocker(t, net.Masters(), redlock.WithConcurrency(n))
		lockers := []*redlock.Locker{first, simLocker(t, net.Masters(), redlock.WithConcurrency(n))}
		var holders []*redlock.Lock
		for i := range n {
			holders = append(holders, mustLock(t, lockers[i%2], "key"))
		}
		got, unlock := make(chan int), make(chan struct{})
		var all sync.WaitGroup
		for i := range calls {
			all.Go(func() {
				lock, err := lockers[i%2].Lock(t.Context(), "key")
				if err != nil {
					t.Error(err)
					got <- -1
					return
				}
				got <- i
				<-unlock
				mustUnlock(t, lock)
			})
			eventually(t, bound, "it stands in line", func() bool { return inspect.Keys(lockers[i%2], "key")[0].Waiting == i/2+1 })
			// Those that may ask have their places on the masters: the first process has two slots, and the other one.
			queued(t, first, "key", min((i+2)/2, 1)+min((i+1)/2, 2))
			time.Sleep(100 * time.Millisecond) // by more than the processes may differ about the time
		}
		for i := range calls {
			if i < n {
				mustUnlock(t, holders[(i+1)%n])
			} else {
				unlock <- struct{}{}
			}
			if call := <-got; call != i {
				t.Errorf("call %d has a slot when it is the turn of call %d", call, i)
			}
		}
		for range n {
			unlock <- struct{}{}
		}
		all.Wait()
	})
}

// TestConcurrencyOfTheDead: the slot of a process that has died is free when its lease is over, and those in line get on.
func TestConcurrencyOfTheDead(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		for _, s := range net.Servers {
			s.Give("key", "another", time.Minute)
		}
		lock := mustLock(t, l, "key")
		for _, s := range net.Servers {
			s.Give("key", "another", 500*time.Millisecond)
		}
		var c census
		c.run(t, 2, 5, l, simLocker(t, net.Masters(), redlock.WithConcurrency(2)))
		mustUnlock(t, lock)
		if lock.Slot() != 1 {
			t.Errorf("has slot %d, and the dead process has slot 0", lock.Slot())
		}
	})
}

// TestConcurrencyRefused: what needs one holder says so, and a result that can't be remembered leaves no lock.
func TestConcurrencyRefused(t *testing.T) {
	t.Parallel()
	l := lockerOn(t, []redlock.Master{memoryMaster("memory")}, redlock.WithConcurrency(2))
	for name, call := range map[string]func() error{
		"recall":   func() error { _, err := l.Lock(t.Context(), "a", redlock.WithRecall()); return err },
		"once per": func() error { _, err := l.Lock(t.Context(), "a", redlock.WithOncePer(time.Minute)); return err },
		"of one key": func() error {
			_, err := l.Lock(t.Context(), "a", redlock.WithConcurrency(1), redlock.WithConcurrency(2, "a"), redlock.WithRecall())
			return err
		},
		"a result": func() error { return mustLock(t, l, "a").UnlockWith([]byte("done"), time.Minute) },
	} {
		if err := call(); !errors.Is(err, redlock.ErrConcurrency) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{-1, 0, 257, 1 << (strconv.IntSize / 2), 1<<(strconv.IntSize/2) + 1} {
		for _, opt := range []redlock.LockOption{redlock.WithConcurrency(n), redlock.WithConcurrency(n, "b")} {
			if lock, err := l.Lock(t.Context(), "a", opt); err == nil {
				t.Errorf("concurrency %d: slot %d", n, lock.Slot())
			}
		}
	}
	if keys := inspect.Keys(l, ""); len(keys) != 0 {
		t.Errorf("left: %+v", keys)
	}
}

// TestConcurrencyAtOnce: calls that come at once ask at once, and not each after the one before it.
func TestConcurrencyAtOnce(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		const n = 8
		var mu sync.Mutex
		asked := make(map[string]bool) // attempts, while no master answers
		l := simLocker(t, net.Masters(), redlock.WithConcurrency(n), redlock.WithObserver(redlock.Observer{Attempted: func(a fmt.Stringer) {
			mu.Lock()
			defer mu.Unlock()
			var token string
			if _, err := fmt.Sscanf(a.String(), "attempt 1 by %s", &token); err == nil && strings.Contains(a.String(), ": lost: ") {
				asked[token] = true
			}
		}}))
		lockUnlock(t, l, "key")
		net.Servers[0].Hang()
		var all sync.WaitGroup
		for range 2 * n {
			all.Go(func() { mustUnlock(t, mustLock(t, l, "key")) })
		}
		eventually(t, bound, "as many ask as there are slots", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(asked) >= n
		})
		net.Servers[0].Resume()
		all.Wait()
	})
}

// TestConcurrencyOfSeveral: over two processes, calls for several keys that may have one, two and three holders have one slot of each of
// theirs, and never more hold a key than may.
func TestConcurrencyOfSeveral(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		first := simLocker(t, net.Masters())
		lockers := []*redlock.Locker{first, simLocker(t, net.Masters())}
		most := map[string]int{"one": 1, "two": 2, "three": 3}
		var taken sync.Map // by key and slot
		var all sync.WaitGroup
		for i, keys := range slices.Repeat([][]string{{"one", "three"}, {"three", "two"}, {"two", "one"}, {"one", "two", "three"}, {"three"}, {"one"}}, 10) {
			all.Go(func() {
				lock, err := lockers[i%2].LockAll(t.Context(), keys, redlock.WithConcurrency(2, "two"), redlock.WithConcurrency(3, "three"))
				if err != nil {
					t.Error(err)
					return
				}
				for _, key := range keys {
					slot := lock.Slot(key)
					if _, twice := taken.LoadOrStore(key+strconv.Itoa(slot), true); twice || slot < 0 || slot >= most[key] {
						t.Errorf("slot %d of %s, which another has: %t", slot, key, twice)
					}
				}
				for _, key := range keys {
					taken.Delete(key + strconv.Itoa(lock.Slot(key)))
				}
				mustUnlock(t, lock)
			})
		}
		all.Wait()
		for _, l := range lockers {
			if keys := inspect.Keys(l, ""); len(keys) != 0 {
				t.Errorf("left: %+v", keys)
			}
		}
		net.RequireNoKeys(t)
	})
}

// TestConcurrencyAllOrNothing: a call that waits for one of its keys keeps nobody from the slots of another.
func TestConcurrencyAllOrNothing(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		other := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		held := []*redlock.Lock{mustLock(t, l, "b"), mustLock(t, other, "b")}
		for _, l := range []*redlock.Locker{l, other} {
			if _, err := l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithWait(0)); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("error %v, want that it is held", err)
			}
		}
		got := make(chan *redlock.Lock)
		go func() {
			lock, err := other.LockAll(t.Context(), []string{"b", "a"})
			if err != nil {
				t.Error(err)
			}
			got <- lock
		}()
		queued(t, l, "b", 1)
		for _, l := range []*redlock.Locker{l, other} {
			one, two := mustLock(t, l, "a"), mustLock(t, l, "a")
			mustUnlock(t, one)
			mustUnlock(t, two)
		}
		mustUnlock(t, held[0])
		lock := <-got
		if lock.Slot("b") != held[0].Slot() || lock.Slot("a") < 0 || lock.Slot("c") != -1 {
			t.Errorf("slots %d and %d, %d", lock.Slot("a"), lock.Slot("b"), lock.Slot("c"))
		}
		mustUnlock(t, lock)
		mustUnlock(t, held[1])
		net.RequireNoKeys(t)
	})
}

// TestConcurrencyDiffersInLog: the log says once that calls differ on how many may hold a key, without the key.
func TestConcurrencyDiffersInLog(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		holder := simLocker(t, net.Masters())
		waiter := simLocker(t, net.Masters())
		var log logBook
		wider := simLocker(t, net.Masters(), redlock.WithConcurrency(3), redlock.WithLabel("rule"), log.option())
		lock := mustLock(t, holder, "secret")
		got := make(chan *redlock.Lock)
		go func() { got <- mustLock(t, waiter, "secret") }()
		queued(t, holder, "secret", 1)
		ones := []*redlock.Lock{mustLock(t, wider, "secret"), mustLock(t, wider, "secret")}
		for range 2 {
			if _, err := wider.TryLock(t.Context(), "secret"); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("error %v, want that it is held", err)
			}
		}
		if d := wider.Status().Disagreements; len(d) != 1 || d[0] != (redlock.Disagreement{Concurrency: 1}) {
			t.Errorf("the status has the disagreements %+v", d)
		}
		for _, lock := range append(ones, lock, nil) {
			if lock == nil {
				lock = <-got
			}
			mustUnlock(t, lock)
		}
		_ = wider.Close() // all lines have been written
		if lines := log.lines("calls differ on how many"); len(lines) != 1 || len(log.lines("here=3 elsewhere=1", "rule=rule")) != 1 || len(log.lines("secret")) > 0 {
			t.Errorf("logged: %q", lines)
		}
	})
}

// TestConcurrencyOfCallsDiffers: in one process, too, a call for several keys has its turn before later ones that may hold a key beside
// more others: it has its lock before they end, as none of them takes the place that it asks for.
func TestConcurrencyOfCallsDiffers(t *testing.T) {
	t.Parallel()
	l := lockerOn(t, []redlock.Master{memoryMaster("memory")}, redlock.WithConcurrency(5))
	first, second := mustLock(t, l, "a"), mustLock(t, l, "a")
	got := make(chan *redlock.Lock, 2)
	ask := func(waiting int, lock func() (*redlock.Lock, error)) {
		go func() {
			lock, err := lock()
			if err != nil {
				t.Error(err)
			}
			got <- lock
		}()
		eventually(t, bound, "it stands in line", func() bool { return inspect.Keys(l, "a")[0].Waiting == waiting })
	}
	ask(1, func() (*redlock.Lock, error) {
		return l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithConcurrency(2, "a"))
	})
	ask(2, func() (*redlock.Lock, error) { return l.Lock(t.Context(), "a") })
	mustUnlock(t, first)
	for _, lock := range []*redlock.Lock{<-got, <-got, second} {
		if lock != nil {
			mustUnlock(t, lock)
		}
	}
}

// TestConcurrencyAttempts: over two processes with more calls than slots, a call asks for a slot in vain about once: when it comes. Then it
// is offered one, and has it.
func TestConcurrencyAttempts(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const n, turns = 20, 15
		var attempts atomic.Int64
		count := redlock.WithObserver(redlock.Observer{Attempted: func(fmt.Stringer) { attempts.Add(1) }})
		first := simLocker(t, net.Masters(), redlock.WithConcurrency(n), count)
		lockers := []*redlock.Locker{first, simLocker(t, net.Masters(), redlock.WithConcurrency(n), count)}
		var all sync.WaitGroup
		for i := range 2 * n {
			all.Go(func() {
				for range turns {
					lock := mustLock(t, lockers[i%2], "key")
					time.Sleep(20 * time.Millisecond)
					mustUnlock(t, lock)
				}
			})
		}
		all.Wait()
		if each := float64(attempts.Load()) / (2 * n * turns); each > 4 { // 7 where masters name slots, and votes decide
			t.Errorf("%.1f attempts a turn", each)
		}
	})
}

// TestConcurrencyWithoutLeader: whoever leads hangs, and another master offers the slots, until it is back.
func TestConcurrencyWithoutLeader(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		first := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		second := simLocker(t, net.Masters(), redlock.WithConcurrency(2))
		held := []*redlock.Lock{mustLock(t, first, "key"), mustLock(t, second, "key")}
		got := make(chan *redlock.Lock, 4)
		wait := func() {
			for _, l := range []*redlock.Locker{first, second} {
				go func() { got <- mustLock(t, l, "key") }()
			}
		}
		wait()
		leaders := func() (lead []*simnet.Server) {
			for _, s := range net.Servers {
				if s.Leads("key") {
					lead = append(lead, s)
				}
			}
			return lead
		}
		eventually(t, bound, "a master leads", func() bool { return len(leaders()) == 1 })
		former := leaders()[0]
		former.Hang()
		for range 2 { // twice: those that have waited before, and those that come
			for _, lock := range held {
				mustUnlock(t, lock)
			}
			held = []*redlock.Lock{within(t, got), within(t, got)}
			if held[0].Slot() == held[1].Slot() {
				t.Errorf("both have slot %d", held[0].Slot())
			}
			wait()
		}
		former.Resume()
		for _, lock := range held {
			mustUnlock(t, lock)
		}
		mustUnlock(t, within(t, got))
		mustUnlock(t, within(t, got))
		net.RequireNoKeys(t)
	})
}

// TestConcurrencyForced: a slot that is released by force, while nobody waits, is free for the next call at once.
func TestConcurrencyForced(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const long = 2 * bound // until then the slot is believed to be taken
		first := simLocker(t, net.Masters(), redlock.WithConcurrency(2), redlock.WithTTL(long), redlock.WithMaxTTL(long))
		second := simLocker(t, net.Masters(), redlock.WithConcurrency(2), redlock.WithTTL(long), redlock.WithMaxTTL(long))
		held := []*redlock.Lock{mustLock(t, first, "key"), mustLock(t, first, "key")}
		for _, lock := range held {
			if _, err := second.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
				t.Fatal(err)
			}
			if err := inspect.Force(t.Context(), second, "key", lock.Slot(), lock.Fence()); err != nil {
				t.Fatal(err)
			}
			eventually(t, bound, "the slot is free", func() bool {
				next, err := second.TryLock(t.Context(), "key")
				return err == nil && next.Slot() == lock.Slot()
			})
		}
	})
}

// TestConcurrencyLeaderForgets: a leader that has lost a lease offers its slot again and again to the process that has it, which doesn't
// ask as often.
func TestConcurrencyLeaderForgets(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		const long = 4 * bound
		var attempts atomic.Int64
		count := redlock.WithObserver(redlock.Observer{Attempted: func(fmt.Stringer) { attempts.Add(1) }})
		options := []redlock.Option{redlock.WithConcurrency(2), redlock.WithTTL(long), redlock.WithMaxTTL(long)}
		first := simLocker(t, net.Masters(), append(options, count)...)
		second := simLocker(t, net.Masters(), options...)
		own, other := mustLock(t, first, "key"), mustLock(t, second, "key")
		net.Servers[0].Delete("key", own.Slot())
		got := make(chan *redlock.Lock)
		go func() { got <- mustLock(t, first, "key") }()
		time.Sleep(2 * time.Second)
		mustUnlock(t, other)
		mustUnlock(t, within(t, got))
		if n := attempts.Load(); n > 500 {
			t.Errorf("%d attempts in two seconds", n)
		}
	})
}
