package redlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Without WithMaxHold, and with 0, a lock is held for as long as it is renewed.
func TestNoMaxHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, []string{"memory://a", "memory://b", "memory://c"})
		bounded := newLocker(t, []string{"memory://a", "memory://b", "memory://c"}, redlock.WithMaxHold(time.Minute))
		locks := []*redlock.Lock{mustLock(t, l, "key"), mustLock(t, bounded, "key", redlock.WithMaxHold(0))}
		short := mustLock(t, bounded, "short")
		time.Sleep(24 * time.Hour)
		for _, lock := range locks {
			mustUnlock(t, lock)
		}
		if err := short.Err(); err != redlock.ErrMaxHold {
			t.Errorf("with the Locker's max hold: %v, want ErrMaxHold", err)
		}
	})
}

// Unlock says why the lock had ended, for one key and for several.
func TestUnlockSaysWhyItEnded(t *testing.T) {
	type network struct{ cut atomic.Bool }
	reasons := map[string]struct {
		end  func(t *testing.T, l *redlock.Locker, n *network)
		want []error
		not  []error
	}{
		"closed": {func(t *testing.T, l *redlock.Locker, _ *network) {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}, []error{redlock.ErrClosed, redlock.ErrExpired}, []error{redlock.ErrLost, redlock.ErrNoQuorum}},
		"max hold": {func(*testing.T, *redlock.Locker, *network) { time.Sleep(time.Minute) },
			[]error{redlock.ErrMaxHold, redlock.ErrLost, redlock.ErrExpired}, []error{redlock.ErrClosed, redlock.ErrNoQuorum}},
		"lost": {func(_ *testing.T, _ *redlock.Locker, n *network) { n.cut.Store(true); time.Sleep(longTTL) },
			[]error{redlock.ErrLost, redlock.ErrExpired}, []error{redlock.ErrMaxHold, redlock.ErrClosed, redlock.ErrNoQuorum}},
		"lost, then closed": {func(t *testing.T, l *redlock.Locker, n *network) {
			n.cut.Store(true)
			time.Sleep(longTTL)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}, []error{redlock.ErrLost, redlock.ErrExpired}, []error{redlock.ErrMaxHold, redlock.ErrClosed}},
	}
	for name, reason := range reasons {
		for _, keys := range [][]string{{"key"}, {"a", "b"}} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var n network
					l := lockerOn(t, view(farServers(3), func(m *farMaster) { m.lost = n.cut.Load }), redlock.WithMaxHold(time.Minute))
					lock, err := l.LockAll(t.Context(), keys)
					if err != nil {
						t.Fatal(err)
					}
					reason.end(t, l, &n)
					synctest.Wait()
					err = lock.Unlock()
					for _, want := range reason.want {
						if !errors.Is(err, want) {
							t.Errorf("%v, want one that matches %v", err, want)
						}
					}
					for _, not := range reason.not {
						if errors.Is(err, not) {
							t.Errorf("%v matches %v", err, not)
						}
					}
					if again := lock.Unlock(); again != err {
						t.Errorf("%v the second time, and %v the first", again, err)
					}
				})
			})
		}
	}
}

// What f does to its own lock is no error of Do, and what happens to it is.
func TestDoAndItsLock(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	err := l.TryDo(t.Context(), "key", func(ctx context.Context, lock *redlock.Lock) error {
		if err := l.TryDo(ctx, "key", func(context.Context, *redlock.Lock) error { return nil }); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("a second one: %v, want ErrHeld", err)
		}
		mustUnlock(t, lock) // early
		<-ctx.Done()
		return nil
	})
	if err != nil {
		t.Errorf("f has unlocked its lock: %v", err)
	}
	err = l.Do(t.Context(), "key", func(ctx context.Context, _ *redlock.Lock) error {
		return ended(t, ctx)
	}, redlock.WithMaxHold(time.Millisecond))
	if !errors.Is(err, redlock.ErrMaxHold) {
		t.Errorf("%v, want ErrMaxHold", err)
	}
}
