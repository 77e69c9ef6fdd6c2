package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// asks are all ways to ask for a lock. They wait for a moment, so that one which isn't refused at once fails in another way.
var asks = map[string]func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error{
	"Lock": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		return freed(l.Lock(ctx, key, opts...))
	},
	"TryLock": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		return freed(l.TryLock(ctx, key, opts...))
	},
	"LockAll": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		return freed(l.LockAll(ctx, []string{"another", key}, opts...))
	},
	"LockAll, at once": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		return freed(l.LockAll(ctx, []string{"another", key}, append(opts, redlock.WithWait(0))...))
	},
	"Do": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		return l.Do(ctx, key, func(context.Context, *redlock.Lock) error { return nil }, opts...)
	},
	"TryDo": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		return l.TryDo(ctx, key, func(context.Context, *redlock.Lock) error { return nil }, opts...)
	},
	"Once": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		_, err := l.Once(ctx, key, time.Minute, func(context.Context, *redlock.Lock) ([]byte, error) { return nil, nil }, opts...)
		return err
	},
	"OncePer": func(l *redlock.Locker, ctx context.Context, key string, opts ...redlock.LockOption) error {
		_, err := l.OncePer(ctx, key, time.Minute, func(context.Context, *redlock.Lock) error { return nil }, opts...)
		return err
	},
}

func freed(lock *redlock.Lock, err error) error {
	if err != nil {
		return err
	}
	return lock.Unlock()
}

// TestHeldByCaller: who has a key, and asks for it again in the context of its work, is told so at once, however it asks.
func TestHeldByCaller(t *testing.T) {
	for name, ask := range asks {
		t.Run(name, func(t *testing.T) {
			l := newLocker(t, []string{"memory://"})
			requireRefused := func(in string, ctx context.Context, key string) {
				t.Helper()
				err := ask(l, ctx, key, redlock.WithWait(50*time.Millisecond))
				if !errors.Is(err, redlock.ErrHeldByCaller) || !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("in %s: %v, want ErrHeldByCaller", in, err)
				}
			}
			requireOwn := func(in string, ctx context.Context, key string) {
				t.Helper()
				if err := ask(l, ctx, key, redlock.WithWait(50*time.Millisecond)); errors.Is(err, redlock.ErrHeldByCaller) {
					t.Errorf("in %s: %v", in, err)
				}
			}
			outside := context.WithValue(t.Context(), t, "outside")
			err := l.Do(outside, "key", func(ctx context.Context, lock *redlock.Lock) error {
				requireRefused("the context of Do", ctx, "key")
				child, cancel := context.WithCancel(context.WithoutCancel(ctx))
				defer cancel()
				requireRefused("a child of it", child, "key")
				requireRefused("Lock.Context", lock.Context(), "key")
				with, cancelWith := lock.WithContext(t.Context())
				defer cancelWith()
				requireRefused("Lock.WithContext", with, "key")
				if err := l.Do(ctx, "inner", func(ctx context.Context, _ *redlock.Lock) error {
					requireRefused("Do for another key", ctx, "key")
					requireRefused("Do for another key", ctx, "inner")
					if ctx.Value(t) != "outside" {
						t.Error("the context has lost its values")
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				requireOwn("a context from outside", outside, "key")
				requireOwn("the context of Do, for another key", ctx, "a third")
				if err := ask(newLocker(t, []string{"memory://"}), ctx, "key"); err != nil {
					t.Errorf("of other masters: %v", err)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestHeldByCallerAfterwards: a lock that has ended is nobody's, whoever has its context.
func TestHeldByCallerAfterwards(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	lock := mustLock(t, l, "key")
	left, cancel := context.WithCancel(context.WithoutCancel(lock.Context()))
	defer cancel()
	mustUnlock(t, lock)
	if err := freed(l.Lock(left, "key")); err != nil {
		t.Error(err)
	}
}

// TestHeldByCallerOnSeveralLockers: two Lockers on the same masters exclude each other, also within a process.
func TestHeldByCallerOnSeveralLockers(t *testing.T) {
	outer, servers := onServers(t, 1)
	inner := newLocker(t, redistest.URLs(servers))
	lock := mustLock(t, outer, "key")
	if err := freed(inner.Lock(lock.Context(), "key", redlock.WithWait(50*time.Millisecond))); !errors.Is(err, redlock.ErrHeldByCaller) {
		t.Errorf("%v, want ErrHeldByCaller", err)
	}
	mustUnlock(t, lock)
}

// TestHeldByCallerWithSlots: of n slots a caller may have all, and waits for itself only if it asks for one more.
func TestHeldByCallerWithSlots(t *testing.T) {
	l, n := newLocker(t, []string{"memory://"}), redlock.WithConcurrency(3)
	ctx := t.Context()
	for i := range 3 {
		lock, err := l.Lock(ctx, "key", n, redlock.WithWait(time.Minute))
		if err != nil {
			t.Fatalf("slot %d: %v", i, err)
		}
		defer mustUnlock(t, lock)
		var cancel context.CancelFunc
		ctx, cancel = lock.WithContext(lock.Context()) // which knows the lock twice
		defer cancel()
	}
	if err := freed(l.Lock(ctx, "key", n, redlock.WithWait(50*time.Millisecond))); !errors.Is(err, redlock.ErrHeldByCaller) {
		t.Errorf("one more: %v, want ErrHeldByCaller", err)
	}
	if err := freed(l.Lock(ctx, "key", redlock.WithConcurrency(4), redlock.WithWait(time.Minute))); err != nil {
		t.Errorf("one more of four: %v", err)
	}
	if err := freed(l.LockAll(ctx, []string{"key", "another"}, redlock.WithConcurrency(4), redlock.WithConcurrency(3, "key"), redlock.WithWait(50*time.Millisecond))); !errors.Is(err, redlock.ErrHeldByCaller) {
		t.Errorf("one more of three: %v, want ErrHeldByCaller", err)
	}
}

// TestLongWaitIsTold: a call that waits for itself, and doesn't show it, is told of after ten seconds, once a minute in the log; one that waits
// for a lock which was taken after it came isn't.
func TestLongWaitIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBook
		var traced atomic.Int32
		l, err := redlock.Open([]string{"memory://"}, log.option(), redlock.WithObserver(redlock.Observer{Attempted: func(a fmt.Stringer) {
			if strings.Contains(a.String(), "no attempt for 10s: waits for a lock which this very process holds") {
				traced.Add(1)
			}
		}}))
		if err != nil {
			t.Fatal(err)
		}
		outer := mustLock(t, l, "the key", redlock.WithLabel("outer"))
		for range 3 {
			if err := freed(l.Lock(t.Context(), "the key", redlock.WithLabel("inner"), redlock.WithWait(15*time.Second))); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("inner: %v", err)
			}
		}
		mustUnlock(t, outer)
		time.Sleep(time.Minute) // another line would be due
		for range 8 {           // each has the key for half a second, and waits for those before it
			go func() {
				if lock, err := l.Lock(t.Context(), "the key"); err == nil {
					time.Sleep(500 * time.Millisecond)
					_ = lock.Unlock()
				}
			}()
		}
		time.Sleep(time.Minute)
		mustClose(t, l) // then all is told
		if lines := log.lines("this process has held", "label=inner", "holder_label=outer"); len(lines) != 1 {
			t.Errorf("lines %q, want one", lines)
		}
		if lines := log.lines("this process has held"); len(lines) != 1 || strings.Contains(lines[0], "the key") {
			t.Errorf("lines %q, want one without the key", lines)
		}
		if n := traced.Load(); n != 3 {
			t.Errorf("the Observer was told %d times, want 3", n)
		}
	})
}
