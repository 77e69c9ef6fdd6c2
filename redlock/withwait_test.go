package redlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// requireWaited wants a call to have failed when its wait was over, because the lock was held.
func requireWaited(t *testing.T, err error, waited, want time.Duration) {
	t.Helper()
	var held *redlock.HeldError
	if !errors.As(err, &held) || !errors.Is(err, redlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want a *HeldError of a wait that is over", err)
	}
	if waited != want {
		t.Errorf("after %v, want %v", waited, want)
	}
}

// Each call waits as long as it is told, in the line of this process or as the head behind another process.
func TestWithWait(t *testing.T) {
	for name, sameProcess := range map[string]bool{"in line": true, "at the head": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers := farServers(3)
				straight := func(*farMaster) {}
				l := lockerOn(t, view(servers, straight), redlock.WithWait(3*time.Second))
				holder := l
				if !sameProcess {
					holder = lockerOn(t, view(servers, straight))
				}
				lock := mustLock(t, holder, "key")
				none := func(context.Context, *redlock.Lock) error { t.Error("f was called"); return nil }
				for name, call := range map[string]struct {
					wait time.Duration
					do   func(context.Context) error
				}{
					"Lock, by the Locker's default": {3 * time.Second, func(ctx context.Context) error {
						_, err := l.Lock(ctx, "key")
						return err
					}},
					"Lock": {time.Second, func(ctx context.Context) error {
						_, err := l.Lock(ctx, "key", redlock.WithWait(time.Second))
						return err
					}},
					"LockAll": {time.Second, func(ctx context.Context) error {
						_, err := l.LockAll(ctx, []string{"a", "key", "z"}, redlock.WithWait(time.Second))
						return err
					}},
					"Do": {time.Second, func(ctx context.Context) error {
						return l.Do(ctx, "key", none, redlock.WithWait(time.Second))
					}},
				} {
					start := time.Now()
					err := call.do(t.Context())
					t.Log(name)
					requireWaited(t, err, time.Since(start), call.wait)
				}

				start := time.Now()
				for name, err := range map[string]error{
					"Lock with 0":      second(l.Lock(t.Context(), "key", redlock.WithWait(0))),
					"TryLock":          second(l.TryLock(t.Context(), "key", redlock.WithWait(time.Second))),
					"LockAll, at once": second(l.LockAll(t.Context(), []string{"a", "key"}, redlock.WithWait(time.Second), redlock.WithWait(0))),
					"TryDo":            l.TryDo(t.Context(), "key", none, redlock.WithWait(time.Second)),
					"Do with 0":        l.Do(t.Context(), "key", none, redlock.WithWait(0)),
				} {
					if !errors.Is(err, redlock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %v, want ErrHeld", name, err)
					}
				}
				if waited := time.Since(start); waited > 100*time.Millisecond {
					t.Errorf("calls that don't wait took %v", waited)
				}

				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				start = time.Now()
				_, err := l.Lock(ctx, "key", redlock.WithWait(time.Minute))
				requireWaited(t, err, time.Since(start), time.Second)

				mustUnlock(t, lock)
				for _, key := range []string{"a", "key", "z"} { // nothing is left of the waits
					lockUnlock(t, l, key)
				}
			})
		})
	}
}

func second(_ *redlock.Lock, err error) error { return err }

// The wait of LockAll is for all keys together: a part of it may go by for each.
func TestWithWaitForSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, []string{"memory://a", "memory://b", "memory://c"})
		first, other := mustLock(t, l, "first"), mustLock(t, l, "other")
		time.AfterFunc(1500*time.Millisecond, func() { mustUnlock(t, first) })
		start := time.Now()
		_, err := l.LockAll(t.Context(), []string{"first", "other"}, redlock.WithWait(2*time.Second))
		requireWaited(t, err, time.Since(start), 2*time.Second)
		lockUnlock(t, l, "first")
		time.AfterFunc(500*time.Millisecond, func() { mustUnlock(t, other) })
		lock, err := l.LockAll(t.Context(), []string{"first", "other"}, redlock.WithWait(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the wait is long over
		mustUnlock(t, lock)
	})
}

// A wait that is shorter than a round trip is still good for one attempt, and doesn't bound the work.
func TestShortWaitIsOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockerOn(t, view(farServers(3), func(m *farMaster) {
			m.there, m.back = after(100*time.Millisecond), after(200*time.Millisecond)
		}))
		time.Sleep(time.Second) // the first connect is over
		var work time.Duration
		err := l.Do(t.Context(), "key", func(ctx context.Context, lock *redlock.Lock) error {
			start := time.Now()
			time.Sleep(time.Hour)
			work = time.Since(start)
			if lock.Fence() == 0 {
				t.Error("no fence")
			}
			return context.Cause(ctx)
		}, redlock.WithWait(time.Millisecond))
		if err != nil || work != time.Hour {
			t.Errorf("worked for %v, error %v", work, err)
		}
		lock := mustLock(t, l, "key")
		start := time.Now()
		_, err = l.Lock(t.Context(), "key", redlock.WithWait(time.Millisecond))
		requireWaited(t, err, time.Since(start), time.Millisecond) // in line, where there is no attempt to complete
		mustUnlock(t, lock)
	})
}

// Masters that hang, and masters that can't be reached, end a wait with a *QuorumError.
func TestWithWaitWithoutQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := lockerOn(t, view(farServers(3), func(m *farMaster) {
			m.lost = func() bool { return true }
		}))
		start := time.Now()
		_, err := l.Lock(t.Context(), "key", redlock.WithWait(500*time.Millisecond))
		var quorum *redlock.QuorumError
		var master *redlock.MasterError
		if !errors.As(err, &quorum) || !errors.Is(err, redlock.ErrNoQuorum) || !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &master) {
			t.Errorf("%v, want a *QuorumError of a wait that is over", err)
		}
		if waited := time.Since(start); waited < 500*time.Millisecond || waited > 2*time.Second {
			t.Errorf("after %v, want 500ms and at most an attempt more", waited)
		}
	})
	l := newLocker(t, []string{"redis://127.0.0.1:1"})
	_, err := l.Lock(t.Context(), "key", redlock.WithWait(time.Hour), redlock.WithMastersWait(time.Second)) // it is known sooner that none can come
	if !errors.Is(err, redlock.ErrNoQuorum) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want ErrNoQuorum before the wait is over", err)
	}
}
