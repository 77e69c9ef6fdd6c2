package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

func TestTurn(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n, " masters"), func(t *testing.T) {
			l, servers := onServers(t, n)
			start := time.Now()
			lock := mustLock(t, l, "key")
			if until := lock.Until(); until.Before(start.Add(longTTL/2)) || until.After(time.Now().Add(longTTL)) {
				t.Errorf("until %v after the start, want nearly %v", until.Sub(start), longTTL)
			}
			if err := lock.Err(); err != nil || lock.Context().Err() != nil {
				t.Errorf("held, but Err is %v and the context's %v", err, lock.Context().Err())
			}
			try := func() error { _, err := l.TryLock(t.Context(), "key"); return err }
			if err := answered(t, try); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("second TryLock: %v, want ErrHeld", err)
			}
			mustUnlock(t, mustLock(t, l, "other key"))
			mustUnlock(t, lock)
			mustUnlock(t, lock) // once more does nothing
			if err := ended(t, lock.Context()); err != context.Canceled || lock.Err() != context.Canceled {
				t.Errorf("context ended with %v, Err is %v, want context.Canceled", err, lock.Err())
			}
			var again *redlock.Lock
			if err := answered(t, func() (err error) { again, err = l.TryLock(t.Context(), "key"); return err }); err != nil {
				t.Fatalf("TryLock after Unlock: %v", err)
			}
			mustUnlock(t, lock) // nor does it free the lock of the next holder
			if err := answered(t, try); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("TryLock after the first holder's second Unlock: %v, want ErrHeld", err)
			}
			mustUnlock(t, again)
			redistest.RequireNoKeys(t, servers)
		})
	}
}

func TestMutualExclusion(t *testing.T) {
	t.Parallel()
	const workers, turns = 8, 10
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " masters"), func(t *testing.T) {
			one, servers := onServers(t, n)
			two := newLocker(t, redistest.URLs(servers))
			var (
				counter int // unsynchronized: the race detector watches, and an overlap loses counts
				inside  atomic.Int32
				overlap atomic.Int32
				group   sync.WaitGroup
			)
			for w := range workers {
				l := []*redlock.Locker{one, two}[w%2]
				group.Go(func() {
					for range turns {
						err := l.Do(t.Context(), "key", func(context.Context, *redlock.Lock) error {
							if inside.Add(1) > 1 {
								overlap.Add(1)
							}
							before := counter
							time.Sleep(100 * time.Microsecond)
							counter = before + 1
							inside.Add(-1)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
			if overlap.Load() > 0 || counter != workers*turns {
				t.Errorf("%d overlaps, counted %d of %d turns", overlap.Load(), counter, workers*turns)
			}
			redistest.RequireNoKeys(t, servers)
		})
	}
}

func TestHeldError(t *testing.T) {
	const key = "order-Zm9vYmFy" // nothing else looks like it
	l, _ := onServers(t, 3)
	defer unlocked(t, mustLock(t, l, key, redlock.WithTTL(5*time.Second)))
	err := answered(t, func() error { _, err := l.TryLock(t.Context(), key); return err })
	var held *redlock.HeldError
	if !errors.As(err, &held) || !errors.Is(err, redlock.ErrHeld) || errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatalf("TryLock: %v, want a HeldError", err)
	}
	if held.RetryAfter <= 0 || held.RetryAfter > 5*time.Second {
		t.Errorf("RetryAfter %v, want at most the holder's TTL of 5s", held.RetryAfter)
	}
	if strings.Contains(err.Error(), key) {
		t.Errorf("error %q tells the key", err)
	}
}

func TestLockWaits(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	first := mustLock(t, l, "key")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := l.Lock(ctx, "key")
	if !errors.Is(err, redlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lock until the deadline: %v, want ErrHeld and DeadlineExceeded", err)
	}
	if ctx.Err() == nil {
		t.Error("Lock returned before its context ended")
	}
	if _, err = l.Lock(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redlock.ErrHeld) {
		t.Errorf("Lock after the deadline: %v, want DeadlineExceeded without an attempt", err)
	}

	got := make(chan error, 1)
	go func() { got <- l.Do(t.Context(), "key", func(context.Context, *redlock.Lock) error { return nil }) }()
	select {
	case err := <-got:
		t.Fatalf("a waiter got in beside the holder: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	mustUnlock(t, first)
	select {
	case err := <-got:
		if err != nil {
			t.Errorf("waiter: %v", err)
		}
	case <-time.After(bound):
		t.Fatal("the waiter doesn't get the lock that is free")
	}
	redistest.RequireNoKeys(t, servers)
}

func TestLost(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		type value struct{}
		parent, cancelParent := context.WithCancel(context.WithValue(t.Context(), value{}, "v"))
		lock, err := l.Lock(parent, "key")
		if err != nil {
			t.Fatal(err)
		}
		cancelParent()
		work, cancel := lock.WithContext(t.Context())
		defer cancel()
		stopped, stop := lock.WithContext(t.Context())
		stop()
		if err := context.Cause(stopped); err != context.Canceled {
			t.Errorf("canceled child has cause %v, want context.Canceled", err)
		}
		if lock.Context().Err() != nil || lock.Context().Value(value{}) != "v" {
			t.Errorf("lock's context: error %v, value %v; want the parent's value but not its end", lock.Context().Err(), lock.Context().Value(value{}))
		}
		for _, s := range net.Servers {
			s.Hang()
		}
		for name, ctx := range map[string]context.Context{"Context": lock.Context(), "WithContext": work} {
			if err := ended(t, ctx); err != redlock.ErrLost {
				t.Errorf("%s ended with %v, want ErrLost", name, err)
			}
		}
		if late := time.Since(lock.Until()); late < 0 || late > time.Millisecond {
			t.Errorf("lost %v after the end of validity", late)
		}
		for _, s := range net.Servers {
			s.Resume()
		}
		net.RequireNoKeys(t)
		if err := lock.Unlock(); !errors.Is(err, redlock.ErrExpired) || !errors.Is(err, redlock.ErrLost) {
			t.Errorf("Unlock after the loss: %v, want ErrExpired and ErrLost", err)
		}

		lock = mustLock(t, l, "key")
		for _, s := range net.Servers {
			s.Give("key", "another", time.Minute)
		}
		for range 2 {
			if err := lock.Unlock(); !errors.Is(err, redlock.ErrNotOwner) {
				t.Errorf("Unlock after another has taken the lock: %v, want ErrNotOwner", err)
			}
		}
	})
}

func TestDo(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		failed := errors.New("work failed")
		if err := l.Do(t.Context(), "key", func(context.Context, *redlock.Lock) error { return failed }); !errors.Is(err, failed) {
			t.Errorf("Do: %v, want the error of the work", err)
		}
		err := l.Do(t.Context(), "key", func(ctx context.Context, _ *redlock.Lock) error {
			for _, s := range net.Servers {
				s.Hang()
				defer s.Resume()
			}
			return ended(t, ctx)
		})
		if !errors.Is(err, redlock.ErrLost) {
			t.Errorf("Do without masters: %v, want ErrLost", err)
		}
		err = l.Do(t.Context(), "key", func(context.Context, *redlock.Lock) error {
			for _, s := range net.Servers {
				s.Delete("key", 0)
			}
			return nil
		})
		if !errors.Is(err, redlock.ErrExpired) {
			t.Errorf("Do whose keys went away: %v, want ErrExpired", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(t.Context(), "panic", func(context.Context, *redlock.Lock) error { panic("work panics") })
		}()
		held := mustLock(t, l, "key")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err = l.Do(ctx, "key", func(context.Context, *redlock.Lock) error { t.Error("Do ran without the lock"); return nil })
		if !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("Do on a held key: %v, want ErrHeld", err)
		}
		mustUnlock(t, held)
		net.RequireNoKeys(t)
	})
}

func TestOptions(t *testing.T) {
	for name, opt := range map[string]redlock.Option{
		"timeout":      redlock.WithTimeout(0),
		"prefix":       redlock.WithPrefix(""),
		"prefix \"{\"": redlock.WithPrefix("{"),
		"logger":       redlock.WithLogger(nil),
		"max ttl":      redlock.WithMaxTTL(5 * time.Second), // below the default TTL
	} {
		if _, err := redlock.Open([]string{"memory://"}, opt); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}

	l, servers := onServers(t, 1, redlock.WithMaxTTL(longTTL))
	if _, err := l.TryLock(t.Context(), ""); err == nil {
		t.Error("an empty key was locked")
	}
	if _, err := l.TryLock(t.Context(), "key", redlock.WithTTL(longTTL+1)); err == nil || !strings.Contains(err.Error(), "max ttl") {
		t.Errorf("TTL above the max TTL: %v", err)
	}
	lock := mustLock(t, l, "key", redlock.WithTTL(longTTL/2))
	if left := servers[0].Client().PTTL(t.Context(), "redlock:{key}").Val(); left <= 0 || left > longTTL/2 {
		t.Errorf("key lives for %v, want at most the lock's own TTL", left)
	}
	mustUnlock(t, lock)
}

func TestClose(t *testing.T) {
	l, servers := onServers(t, 3)
	lock := mustLock(t, l, "key")
	_ = mustLock(t, l, "other key")
	waiting := make(chan error, 1)
	go func() {
		_, err := l.Lock(t.Context(), "key")
		waiting <- err
	}()
	time.Sleep(20 * time.Millisecond) // mostly it waits by now; the result must be the same if not
	if err := l.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-waiting; err != redlock.ErrClosed {
		t.Errorf("waiting Lock: %v, want ErrClosed", err)
	}
	if err := ended(t, lock.Context()); err != redlock.ErrClosed {
		t.Errorf("the held lock's context ended with %v, want ErrClosed", err)
	}
	if _, err := l.TryLock(t.Context(), "key"); err != redlock.ErrClosed {
		t.Errorf("TryLock after Close: %v, want ErrClosed", err)
	}
	_ = lock.Unlock() // as a deferred Unlock does; it must not hang or panic
	for _, s := range servers {
		if keys := s.Keys(); len(keys) > 0 {
			t.Errorf("%s still holds %q when Close has returned", s.Addr(), keys)
		}
		eventually(t, bound, "no connection is left", func() bool { return s.Connections() == 0 })
	}
}
