package redlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// crowd is a number of goroutines, over some Lockers, that take turns on one key.
type crowd struct {
	section time.Duration // for which each turn holds the lock

	mu    sync.Mutex
	total int     // of turns
	turns [][]int // by goroutine, how many turns of others each of its turns was waited for
	came  map[string]int
}

// takeTurns has n goroutines of each Locker take turns until there were so many.
func (c *crowd) takeTurns(t *testing.T, lockers []*redlock.Locker, n, total int) {
	t.Helper()
	c.turns, c.came = make([][]int, n*len(lockers)), make(map[string]int)
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	within := make(chan struct{}, 1)
	var all sync.WaitGroup
	for i := range c.turns {
		all.Go(func() {
			for {
				c.mu.Lock()
				called := c.total
				c.mu.Unlock()
				lock, err := lockers[i%len(lockers)].Lock(ctx, "key")
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("lock: %v", err)
					}
					return
				}
				select {
				case within <- struct{}{}:
				default:
					t.Error("two hold the lock at once")
				}
				time.Sleep(c.section)
				c.mu.Lock()
				c.turns[i] = append(c.turns[i], c.total-called)
				c.came[inside.AcquisitionOf(lock).Via]++
				if c.total++; c.total == total {
					enough()
				}
				c.mu.Unlock()
				<-within
				if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
					t.Errorf("unlock: %v", err)
				}
			}
		})
	}
	all.Wait()
}

// fairness gives the smallest and the largest number of turns of a goroutine, and how many turns of others
// one waited for, on average and at most. A machine that is busy doesn't matter to either.
func (c *crowd) fairness() (worst, best int, mean float64, longest int) {
	worst = len(c.turns[0])
	sum := 0
	for _, turns := range c.turns {
		worst, best = min(worst, len(turns)), max(best, len(turns))
		for _, wait := range turns {
			longest = max(longest, wait)
			sum += wait
		}
	}
	return worst, best, float64(sum) / float64(c.total), longest
}

// commandsEach is how many commands a master has got for each turn.
func commandsEach(net *simnet.Net, before []int, turns int) float64 {
	most := 0
	for i, s := range net.Servers {
		most = max(most, lockCommands(s)-before[i])
	}
	return float64(most) / float64(turns)
}

func lockCommands(s *simnet.Server) int {
	return s.Calls(simnet.Acquire, simnet.Release, simnet.Extend)
}

func commandsOnEach(net *simnet.Net) (counts []int) {
	for _, s := range net.Servers {
		counts = append(counts, lockCommands(s))
	}
	return counts
}

// TestPassCost: in one process a turn costs one command for each master, in which the last turn's
// release is the next one's acquire.
func TestPassCost(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lockUnlock(t, l, "key")
		before := commandsOnEach(net)
		var c crowd
		c.takeTurns(t, []*redlock.Locker{l}, 32, 1600)
		each := commandsEach(net, before, c.total)
		t.Logf("%.3f commands for each master and turn; turns came %v", each, c.came)
		if each > 1.1 {
			t.Errorf("%.3f commands for each master and turn, want at most 1.1", each)
		}
		net.RequireNoKeys(t)
	})
}

// TestTwoProcessesTakeTurns: those who wait in two processes are served in the order in which they
// came, with few commands.
func TestTwoProcessesTakeTurns(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		other := simLocker(t, net.Masters())
		lockUnlock(t, l, "key")
		before := commandsOnEach(net)
		c := crowd{section: time.Millisecond}
		c.takeTurns(t, []*redlock.Locker{l, other}, 32, 1600)
		each := commandsEach(net, before, c.total)
		worst, best, mean, longest := c.fairness()
		t.Logf("%d turns, %.3f commands for each master and turn; turns came %v; %d to %d turns each; waits for %.1f others on average, %d at most",
			c.total, each, c.came, worst, best, mean, longest)
		passed, woken := float64(c.came[inside.ViaPassed]), float64(c.total-c.came[inside.ViaPassed])
		if most := (1.1*passed + 4.5*woken) / float64(c.total); each > most { // how the calls of the two are mixed is chance
			t.Errorf("%.3f commands for each master and turn, want at most %.3f", each, most)
		}
		if best > 2*worst {
			t.Errorf("one had %d turns, another %d: want within a factor of 2", best, worst)
		}
		if float64(longest) > 2*mean {
			t.Errorf("the longest wait is for %d others, the mean %.1f: want within a factor of 2", longest, mean)
		}
		net.RequireNoKeys(t)
	})
}

// TestWhoGivesUpLeavesNothing: no ticket is left by waiters of two processes whose contexts end, and
// the next one gets the lock at once.
func TestWhoGivesUpLeavesNothing(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		other := simLocker(t, net.Masters())
		holder := mustLock(t, l, "key")
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				_, err := []*redlock.Locker{l, other}[i%2].Lock(ctx, "key")
				if !errors.Is(err, context.Canceled) || !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("error %v, want that of the context, and that the lock is held", err)
				}
			})
		}
		queued(t, l, "key", 1)
		cancel()
		all.Wait()
		eventually(t, bound, "only the lock's own key is left", func() bool {
			for _, s := range net.Servers {
				if len(s.Keys()) != 1 {
					return false
				}
			}
			return true
		})
		mustUnlock(t, holder)
		lockUnlock(t, other, "key")
		net.RequireNoKeys(t)
	})
}

// TestTooManyWaiters are refused at once.
func TestTooManyWaiters(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		holder := mustLock(t, l, "key")
		ctx, cancel := context.WithCancel(t.Context())
		var refused, waited sync.WaitGroup
		waited.Add(10)
		refused.Add(40)
		for range 50 {
			go func() {
				lock, err := l.Lock(ctx, "key", redlock.WithMaxWaiters(10))
				if errors.Is(err, redlock.ErrTooManyWaiters) && !errors.Is(err, redlock.ErrHeld) && !errors.Is(err, redlock.ErrNoQuorum) {
					refused.Done()
					return
				}
				if err != nil {
					t.Errorf("lock: %v", err)
				} else if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
					t.Errorf("unlock: %v", err)
				}
				waited.Done()
			}()
		}
		refused.Wait()
		if _, err := l.TryLock(ctx, "key", redlock.WithMaxWaiters(10)); !errors.Is(err, redlock.ErrHeld) || errors.Is(err, redlock.ErrTooManyWaiters) {
			t.Errorf("a call that doesn't wait: %v", err)
		}
		mustUnlock(t, holder)
		waited.Wait()
		cancel()
		net.RequireNoKeys(t)
	})
}

// TestTryLockJumpsNoQueue: a key that is free but for those who wait for it is refused.
func TestTryLockJumpsNoQueue(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l, other, third := simLocker(t, net.Masters()), simLocker(t, net.Masters()), simLocker(t, net.Masters())
		holder := mustLock(t, l, "key")
		waiter := make(chan *redlock.Lock)
		go func() { waiter <- mustLock(t, other, "key") }()
		queued(t, l, "key", 1)
		for _, s := range net.Servers { // the holder's key is gone, but nobody has been told
			s.Delete("key", 0)
		}
		if lock := tryLock(t, third, "key"); lock != nil {
			t.Error("got the lock before one who waits")
		}
		lock := <-waiter
		if came := inside.AcquisitionOf(lock).Via; came != inside.ViaWoken { // by the try
			t.Errorf("the one who waits came by %v", came)
		}
		mustUnlock(t, lock)
		_ = holder.Unlock()
		net.RequireNoKeys(t)
	})
}

// TestForgottenSubscriptions: something between forgets the connections of a process, once: all of them, or only those of its
// subscriptions. These are made again: without wake-ups, a key that is waited for would be idle until the next poll.
func TestForgottenSubscriptions(t *testing.T) {
	for name, forget := range map[string]func(*simnet.Address){"all": (*simnet.Address).Forget, "subscriptions": (*simnet.Address).ForgetSubscriptions} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				ways := ownNetwork(net)
				waiter, holder := simLocker(t, net.Masters(ways...)), simLocker(t, net.Masters())
				turn := func() string {
					held := mustLock(t, holder, "order:1")
					got := make(chan *redlock.Lock)
					go func() { got <- mustLock(t, waiter, "order:1") }()
					time.Sleep(200 * time.Millisecond) // it has asked again, with its subscriptions
					mustUnlock(t, held)
					lock := <-got
					mustUnlock(t, lock)
					return inside.AcquisitionOf(lock).Via
				}
				turn()
				if via := turn(); via != inside.ViaWoken {
					t.Errorf("before, a turn is %v", via)
				}
				for _, way := range ways {
					forget(way)
				}
				eventually(t, bound, "turns are woken", func() bool { return turn() == inside.ViaWoken })
			})
		})
	}
}
