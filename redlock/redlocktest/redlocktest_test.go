package redlocktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mustLock(t *testing.T, l *redlock.Locker, key string, opts ...redlock.LockOption) *redlock.Lock {
	t.Helper()
	lock, err := l.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// complaints counts what a function says against a test.
type complaints struct {
	testing.TB
	n int
}

func (c *complaints) Errorf(string, ...any) { c.n++ }

// TestLose: the holder learns it as from a lease that has ended, and the next call has the key at once.
func TestLose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := redlocktest.New(t)
		lock, began := mustLock(t, l, "order:A"), time.Now()
		other := mustLock(t, l, "order:B")
		next := make(chan *redlock.Lock)
		go func() { next <- mustLock(t, l, "order:A") }()
		synctest.Wait()
		redlocktest.Lose(t, l, "order:a") // as locks are compared
		if cause := context.Cause(lock.Context()); cause != redlock.ErrLost || inside.EndOf(lock) != inside.EndExpired {
			t.Errorf("ended by %v, %s", cause, inside.EndOf(lock))
		}
		if err := lock.Unlock(); !errors.Is(err, redlock.ErrLost) || !errors.Is(err, redlock.ErrExpired) {
			t.Errorf("unlock: %v", err)
		}
		if err := (<-next).Unlock(); err != nil || time.Since(began) > time.Second {
			t.Errorf("the next holder, after %v: %v", time.Since(began), err)
		}
		if err := other.Unlock(); err != nil {
			t.Errorf("another key's lock: %v", err)
		}
		for _, of := range []*redlock.Locker{l, nil} {
			said := &complaints{TB: t}
			if redlocktest.Lose(said, of, "order:A"); said.n != 1 {
				t.Errorf("nothing to lose: %d complaints", said.n)
			}
		}
	})
}

// TestLoseSlots: each holder of this Locker loses its slot, and none of another Locker does.
func TestLoseSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var master redlocktest.Master
		a, b := master.Locker(t), master.Locker(t)
		three := redlock.WithConcurrency(3)
		first, second, others := mustLock(t, a, "key", three), mustLock(t, a, "key", three), mustLock(t, b, "key", three)
		redlocktest.Lose(t, a, "key")
		if first.Err() != redlock.ErrLost || second.Err() != redlock.ErrLost || others.Err() != nil {
			t.Errorf("%v, %v; and of another Locker %v", first.Err(), second.Err(), others.Err())
		}
	})
}

// TestMaster: Lockers of one master exclude each other, in the order in which they came; one that is closed leaves the others running.
func TestMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var master redlocktest.Master
		a, b, c := master.Locker(t), master.Locker(t), master.Locker(t)
		held := mustLock(t, a, "key")
		if _, err := b.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("beside another: %v", err)
		}
		order := make(chan *redlock.Locker, 2)
		for _, l := range []*redlock.Locker{b, c} {
			go func() {
				lock := mustLock(t, l, "key")
				order <- l
				if l == c {
					_ = lock.Unlock()
				}
			}()
			time.Sleep(time.Millisecond)
		}
		if err := a.Close(); err != nil || held.Err() != redlock.ErrClosed {
			t.Errorf("close: %v, and its lock %v", err, held.Err())
		}
		if l := <-order; l != b {
			t.Error("the second in line was served first")
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		<-order
		if _, err := redlocktest.New(t).TryLock(t.Context(), "key"); err != nil {
			t.Errorf("on another master: %v", err)
		}
	})
}

// TestSetAvailable: calls fail while the master is away, and wait for it; a lock is lost at its end; nothing is forgotten.
func TestSetAvailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var master redlocktest.Master
		master.SetAvailable(false)
		l := master.Locker(t)
		if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("before it came: %v", err)
		}
		master.SetAvailable(true)
		lasts, ends := mustLock(t, l, "lasts"), mustLock(t, l, "ends", redlock.WithTTL(2*time.Second))
		closed := master.Locker(t)
		_ = closed.Close()

		master.SetAvailable(false)
		if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("while it is away: %v", err)
		}
		waited := make(chan error)
		go func() {
			lock, err := l.Lock(t.Context(), "key")
			if err == nil {
				err = lock.Unlock()
			}
			waited <- err
		}()
		if <-ends.Context().Done(); context.Cause(ends.Context()) != redlock.ErrLost {
			t.Errorf("ended by %v", context.Cause(ends.Context()))
		}
		master.SetAvailable(true)
		if _, err := l.TryLock(t.Context(), "free"); err != nil {
			t.Errorf("as it is back: %v", err)
		}
		if again := mustLock(t, l, "ends"); again.Fence() <= ends.Fence() {
			t.Errorf("fence %d after %d", again.Fence(), ends.Fence())
		}
		if err := <-waited; err != nil {
			t.Errorf("the call that waited: %v", err)
		}
		if err := lasts.Unlock(); err != nil {
			t.Errorf("the lock that outlived the absence: %v", err)
		}
	})
}

// TestEnd: a Locker ends with its test or earlier, whatever is held, waits or is away then, in a bubble and in real time.
func TestEnd(t *testing.T) {
	ends := func(t *testing.T) {
		var master redlocktest.Master
		var held *redlock.Lock
		waited := make(chan error, 1)
		t.Cleanup(func() { // after those of the Lockers
			if err := <-waited; !errors.Is(err, redlock.ErrClosed) || held.Err() != redlock.ErrClosed {
				t.Errorf("the call that waited: %v; the lock: %v", err, held.Err())
			}
		})
		l, early := master.Locker(t), master.Locker(t)
		held = mustLock(t, l, "key")
		go func() {
			_, err := l.Lock(context.Background(), "key")
			waited <- err
		}()
		for l.Status().Waiting == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := errors.Join(early.Close(), early.Close()); err != nil {
			t.Error(err)
		}
		master.SetAvailable(false)
	}
	t.Run("virtual", func(t *testing.T) { t.Parallel(); synctest.Test(t, ends) })
	t.Run("real", func(t *testing.T) { t.Parallel(); ends(t) })
}
