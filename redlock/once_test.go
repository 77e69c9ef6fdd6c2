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
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestOnce: of many calls in two processes that want the same work done, one does it, and all get its result, whatever it is.
func TestOnce(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	lockers := []*redlock.Locker{newLocker(t, redistest.URLs(servers)), newLocker(t, redistest.URLs(servers))}
	for _, key := range []string{"a", "b", "c", "nothing"} {
		want := key
		if key == "nothing" {
			want = ""
		}
		var runs atomic.Int32
		var calls sync.WaitGroup
		for i := range 20 {
			calls.Go(func() {
				result, err := lockers[i%2].Once(t.Context(), key, time.Minute, func(context.Context, *redlock.Lock) ([]byte, error) {
					runs.Add(1)
					return []byte(want), nil
				})
				if errors.Is(err, redlock.ErrNotRemembered) && errors.Is(err, redlock.ErrNoQuorum) { // confirmed too late, on a busy machine
					err = nil
				}
				if err != nil || string(result) != want {
					t.Errorf("call %d: %q, %v", i, result, err)
				}
			})
		}
		calls.Wait()
		if runs.Load() != 1 {
			t.Errorf("%d calls did the work", runs.Load())
		}
	}
}

// TestWorkThatFails: nothing is remembered of work that fails or panics, and its key is free. A result that can't be remembered comes with an error.
func TestWorkThatFails(t *testing.T) {
	t.Parallel()
	l := newLocker(t, []string{"memory://"})
	failed := errors.New("failed")
	do := func(f func(*redlock.Lock) ([]byte, error)) (result []byte, err error) {
		return l.Once(t.Context(), "k", time.Minute, func(_ context.Context, lock *redlock.Lock) ([]byte, error) { return f(lock) })
	}
	if result, err := do(func(*redlock.Lock) ([]byte, error) { return []byte("some"), failed }); !errors.Is(err, failed) || result != nil {
		t.Errorf("work that fails: %q, %v", result, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = do(func(*redlock.Lock) ([]byte, error) { panic("no work") })
	}()
	long := make([]byte, redlock.MaxResult+1)
	if result, err := do(func(*redlock.Lock) ([]byte, error) { return long, nil }); !errors.Is(err, redlock.ErrNotRemembered) || len(result) != len(long) {
		t.Errorf("a result that is too long: %d bytes, %v", len(result), err)
	}
	lost := func(lock *redlock.Lock) ([]byte, error) {
		if err := inspect.Force(t.Context(), l, "k", 0, lock.Fence()); err != nil {
			t.Error(err)
		}
		return []byte("lost"), nil
	}
	if result, err := do(lost); !errors.Is(err, redlock.ErrNotRemembered) || !errors.Is(err, redlock.ErrLost) || string(result) != "lost" {
		t.Errorf("a lock that was lost: %q, %v", result, err)
	}
	for range 2 {
		if result, err := do(func(*redlock.Lock) ([]byte, error) { return []byte("done"), nil }); err != nil || string(result) != "done" {
			t.Errorf("work that succeeds: %q, %v", result, err)
		}
	}
	if _, err := l.Once(t.Context(), "other", 0, nil); err == nil {
		t.Error("a result that is kept for no time is no error")
	}
}

// TestOncePer: work that fails is done again, and work that succeeds once in a period, which begins with its lock.
func TestOncePer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := redlock.Open([]string{"memory://"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		runs := 0
		work := func(took time.Duration, err error, opts ...redlock.LockOption) (bool, error) {
			return l.OncePer(t.Context(), "report", time.Hour, func(context.Context, *redlock.Lock) error {
				runs++
				time.Sleep(took)
				return err
			}, opts...)
		}
		failed := errors.New("failed")
		if ran, err := work(0, failed); !ran || !errors.Is(err, failed) {
			t.Errorf("work that fails: %v, %v", ran, err)
		}
		var ticks []string
		for tick := range 4 * 60 { // each minute
			ran, err := work(time.Second, nil)
			if err != nil {
				t.Fatal(err)
			}
			if ran {
				ticks = append(ticks, strconv.Itoa(tick))
			}
			time.Sleep(time.Minute)
		}
		if want := []string{"0", "54", "108", "162", "216"}; len(ticks) < 4 || ticks[0] != want[0] || len(ticks) > len(want) {
			t.Errorf("ran at the minutes %v, want about %v", ticks, want)
		}
		if runs != len(ticks)+1 {
			t.Errorf("%d runs", runs)
		}
	})
}

// TestWorkLongerThanItsPeriod: who came while it ran doesn't run it again if its own period is that of the work; who came in a later one does, once the mark is gone.
func TestWorkLongerThanItsPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := redlock.Open([]string{"memory://"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		var calls sync.WaitGroup
		var mu sync.Mutex
		var ran []int
		for i, opts := range [][]redlock.LockOption{nil, nil, nil, {redlock.WithWait(100 * time.Millisecond)}, {redlock.WithWait(0)}} {
			at := []time.Duration{0, 5 * time.Second, 15 * time.Second, 20*time.Second + 100*time.Millisecond, 20*time.Second + 200*time.Millisecond}[i]
			calls.Go(func() {
				time.Sleep(at)
				did, err := l.OncePer(t.Context(), "k", 10*time.Second, func(context.Context, *redlock.Lock) error {
					time.Sleep(20*time.Second - time.Duration(i)*time.Second)
					return nil
				}, opts...)
				if held := i > 2; held != errors.Is(err, redlock.ErrHeld) || !held && err != nil || errors.Is(err, context.DeadlineExceeded) != (i == 3) {
					t.Errorf("call %d: %v", i, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if did {
					ran = append(ran, i)
				}
			})
		}
		calls.Wait()
		if !slices.Equal(ran, []int{0, 2}) {
			t.Errorf("calls %v ran, want 0, and 2, which came in the next period", ran)
		}
		lock, err := l.Lock(t.Context(), "other")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.UnlockDone(); err == nil {
			t.Error("UnlockDone without a period is no error")
		}
		if _, err := l.TryLock(t.Context(), "other"); err != nil {
			t.Errorf("the key isn't free: %v", err)
		}
	})
}

// TestMarkMetTwice: a call that waits for the end of a mark, and then meets another one, waits for as long as it may in all.
func TestMarkMetTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := redlock.Open([]string{"memory://"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		mark := func(keep time.Duration) { // of work that took longer than its period
			lock := mustLock(t, l, "k")
			if err := lock.UnlockWith(fmt.Appendf(nil, `{"took_ns":%d,"kept_ns":%d,"lasts_ns":%d}`, time.Minute, keep, time.Second), keep); err != nil {
				t.Fatal(err)
			}
		}
		mark(3 * time.Second)
		var ran bool
		var call sync.WaitGroup
		call.Go(func() {
			ran, err = l.OncePer(t.Context(), "k", time.Second, func(context.Context, *redlock.Lock) error { return nil }, redlock.WithWait(4*time.Second))
		})
		time.Sleep(2900 * time.Millisecond)
		mark(500 * time.Millisecond)
		if call.Wait(); !ran || err != nil {
			t.Errorf("ran: %t, %v", ran, err)
		}
	})
}

// TestOtherResult: a result that isn't the mark of a period is told as such, whatever its JSON is, and the work doesn't run.
func TestOtherResult(t *testing.T) {
	t.Parallel()
	l, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, result := range []string{`{"paid":true}`, `{}`, "null", "[]", "text", ""} {
		if _, err := l.Once(t.Context(), "k"+result, time.Hour, func(context.Context, *redlock.Lock) ([]byte, error) { return []byte(result), nil }); err != nil {
			t.Fatal(err)
		}
		ran, err := l.OncePer(t.Context(), "k"+result, time.Hour, func(context.Context, *redlock.Lock) error { return nil }, redlock.WithWait(0))
		if ran || err == nil || errors.Is(err, redlock.ErrHeld) || !strings.Contains(err.Error(), "something else than work that is done once per period has left a result for this key, for ") {
			t.Errorf("%q: ran: %t, %v", result, ran, err)
		}
	}
}

// TestFreedByItsWork: work that frees its lock itself leaves no result, and the error says so.
func TestFreedByItsWork(t *testing.T) {
	t.Parallel()
	l, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	result, err := l.Once(t.Context(), "k", time.Minute, func(_ context.Context, lock *redlock.Lock) ([]byte, error) {
		return []byte("done"), lock.Unlock()
	})
	if string(result) != "done" || !errors.Is(err, redlock.ErrNotRemembered) || !strings.Contains(err.Error(), "freed before") {
		t.Errorf("Once returns %q, %v", result, err)
	}
	if ran, err := l.OncePer(t.Context(), "k", time.Minute, func(_ context.Context, lock *redlock.Lock) error { return lock.Unlock() }); !ran || !errors.Is(err, redlock.ErrNotRemembered) {
		t.Errorf("OncePer returns %t, %v", ran, err)
	}
}

// TestWrongPeriods: what can't be a period is refused before the work begins.
func TestWrongPeriods(t *testing.T) {
	t.Parallel()
	l := newLocker(t, []string{"memory://"})
	never := func(context.Context, *redlock.Lock) error { t.Error("it runs"); return nil }
	for _, period := range []time.Duration{-1, 1, time.Millisecond} {
		if ran, err := l.OncePer(t.Context(), "k", period, never); ran || err == nil {
			t.Errorf("once per %v: %v, %v", period, ran, err)
		}
	}
	if _, err := l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithOncePer(time.Hour)); err == nil || errors.Is(err, redlock.ErrHeld) {
		t.Errorf("several keys: %v", err)
	}
	if _, err := l.Once(t.Context(), "k", time.Minute, func(context.Context, *redlock.Lock) ([]byte, error) { return []byte("no mark"), nil }); err != nil {
		t.Fatal(err)
	}
	if ran, err := l.OncePer(t.Context(), "k", time.Hour, never); ran || err == nil {
		t.Errorf("a key with another result: %v, %v", ran, err)
	}
}
