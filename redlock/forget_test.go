package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestInspectResult: each master shows the last result without its content, and the whole whether a quorum remembers it.
func TestInspectResult(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		a, b := process("a"), process("b")
		for i, key := range oddKeys[:7] {
			if seen := mustInspect(t, b, key); seen.Remembered || seen.Result != (inspect.Result{}) {
				t.Fatalf("before: %+v", seen)
			}
			result := strings.Repeat("x", i*i*1000)
			fence := leaveResult(t, a, key, result)
			time.Sleep(time.Second)
			seen := mustInspect(t, b, key)
			whole := seen.Result
			if !seen.Remembered || seen.Held || whole.Fence != fence || whole.Bytes != len(result) || whole.Keep <= time.Hour-2*time.Second || whole.Keep > time.Hour-time.Second {
				t.Errorf("%q: %+v, want %d bytes of fence %d for an hour but a second", key, seen, len(result), fence)
			}
			for _, m := range seen.Masters {
				if m.Result.Fence != fence || m.Result.Bytes != len(result) || m.Result.Keep < whole.Keep-time.Second || m.Result.Keep > time.Hour {
					t.Errorf("%s: %+v", m.Name, m)
				}
			}
		}
	})
}

// leaveResult has all masters remember a result.
func leaveResult(t *testing.T, l *redlock.Locker, key, result string) (fence uint64) {
	t.Helper()
	var lock *redlock.Lock
	eventually(t, bound, "a quorum confirms the result in time", func() bool { // on a busy machine it may not
		lock = mustLock(t, l, key)
		err := lock.UnlockWith([]byte(result), time.Hour)
		if err != nil && !errors.Is(err, redlock.ErrNotRemembered) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, bound, "all masters remember the result", func() bool {
		_, _ = l.TryLock(t.Context(), key, redlock.WithRecall()) // hands it to one that didn't answer in time
		return seenBy(mustInspect(t, l, key), lock.Fence()) == len(l.Status().Masters)
	})
	return lock.Fence()
}

// seenBy returns how many masters remember the result of the lock with this fence.
func seenBy(seen *inspect.View, fence uint64) (n int) {
	for _, m := range seen.Masters {
		if m.Result.Fence == fence {
			n++
		}
	}
	return n
}

// TestInspectResultOfFew: of several results the last one counts, and whether a quorum remembers that one.
func TestInspectResultOfFew(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		first := leaveResult(t, l, "k", "first")
		second := leaveResult(t, l, "k", "the second")
		net.Servers[0].SetResult("k", "first", first, time.Hour)
		net.Servers[2].SetResult("k", "the second", second, time.Minute)
		if seen := mustInspect(t, l, "k"); !seen.Remembered || seen.Result.Fence != second || seen.Result.Bytes != len("the second") || seen.Result.Keep > time.Minute || seen.Masters[0].Result.Fence != first {
			t.Errorf("two of three: %+v", seen)
		}
		net.Servers[1].SetResult("k", "", 0, 0)
		if seen := mustInspect(t, l, "k"); seen.Remembered || seen.Result.Fence != second || seen.Result.Keep > time.Minute || seen.Masters[1].Result.Fence != 0 {
			t.Errorf("one of three: %+v", seen)
		}
		net.Servers[2].Kill()
		if seen := mustInspect(t, l, "k"); seen.Remembered || seen.Result.Fence != first || seen.Masters[2].Err == nil {
			t.Errorf("an older one on one of two: %+v", seen)
		}
	})
}

// forget has a result forgotten, on all masters.
func forget(t testing.TB, l *redlock.Locker, key string) error {
	t.Helper()
	left, err := inspect.Forget(t.Context(), l, key)
	if left != nil {
		t.Errorf("%v may remember it", left)
	}
	return err
}

// TestForget: the work is done again, once, wherever its result was forgotten.
func TestForget(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		a, b := process("a"), process("b")
		for _, key := range oddKeys[:7] {
			if err := forget(t, b, key); !errors.Is(err, redlock.ErrNotRemembered) {
				t.Errorf("nothing to forget: %v", err)
			}
			fence := leaveResult(t, a, key, "paid")
			held := mustLock(t, a, key)
			if err := forget(t, b, key); !errors.Is(err, redlock.ErrHeld) {
				t.Errorf("while the key is held: %v", err)
			}
			if seen := mustInspect(t, b, key); seen.Result.Fence != fence || !seen.Remembered {
				t.Errorf("forgotten while the key is held: %+v", seen)
			}
			mustUnlock(t, held)
			if err := forget(t, b, key); err != nil {
				t.Errorf("when the key is free: %v", err)
			}
			if seen := mustInspect(t, a, key); seen.Remembered || seen.Result.Fence != 0 || seen.Held {
				t.Errorf("after Forget: %+v", seen)
			}
			mustUnlock(t, mustLock(t, a, key, redlock.WithRecall()))
			leaveResult(t, a, key, "paid again")
			if done := recalled(t, b, key); string(done.Result) != "paid again" || done.Fence <= fence {
				t.Errorf("%q of fence %d, after %d", done.Result, done.Fence, fence)
			}
		}
	})
}

// TestForgetWithIllMasters: a quorum is enough, and the master that may still remember is named; with less nothing is certain.
func TestForgetWithIllMasters(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		for _, key := range []string{"a", "b", "c"} {
			leaveResult(t, l, key, "paid")
		}
		remember := func(key string, want ...int) {
			t.Helper()
			var do []int
			for i, s := range net.Servers {
				if s.Result(key) != "" {
					do = append(do, i)
				}
			}
			if !slices.Equal(do, want) {
				t.Errorf("%d remember %q, want %d", do, key, want)
			}
		}
		net.Servers[0].Hang()
		left, err := inspect.Forget(t.Context(), l, "a")
		if err != nil || len(left) != 1 || left[0].Master != "sim://0" || !strings.Contains(left[0].Err.Error(), "no reply") {
			t.Errorf("with one master that hangs: %v, %v", left, err)
		}
		remember("a", 0)
		net.Servers[0].Resume()
		time.Sleep(time.Second)
		if err := forget(t, l, "a"); err != nil && !errors.Is(err, redlock.ErrNotRemembered) {
			t.Error(err)
		}
		remember("a")

		for _, s := range net.Servers[1:] { // on one master only
			s.SetResult("b", "", 0, 0)
		}
		if err := forget(t, l, "b"); err != nil && !errors.Is(err, redlock.ErrNotRemembered) {
			t.Error(err)
		}
		remember("b")

		net.Servers[1].Kill()
		net.Servers[2].Kill()
		left, err = inspect.Forget(t.Context(), l, "c")
		var quorum *redlock.QuorumError
		if !errors.As(err, &quorum) || len(quorum.Masters) != 2 || left != nil {
			t.Errorf("with one master of three: %v, %v", left, err)
		}
		remember("c", 0, 1, 2)
		mustClose(t, l)
		if _, err := inspect.Forget(t.Context(), l, "c"); err != redlock.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestForgetBesideRepeat: a call that has met the result, and waits for a master that is slow for it alone, doesn't store the result there again.
func TestForgetBesideRepeat(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		own := ownNetwork(net)
		far, near := simLocker(t, net.Masters(own...)), simLocker(t, net.Masters())
		lockUnlock(t, far, "other")
		for key, delay := range map[string]time.Duration{"almost late": 24 * time.Millisecond, "late": time.Second} {
			fence := leaveResult(t, near, key, "paid")
			net.Servers[2].SetResult(key, "", 0, 0)
			own[2].Set(simnet.Weather{Delay: delay})
			met := make(chan error, 1)
			go func() {
				_, err := far.TryLock(t.Context(), key, redlock.WithRecall())
				met <- err
			}()
			time.Sleep(10 * time.Millisecond)
			if err := forget(t, near, key); err != nil {
				t.Errorf("%s: %v", key, err)
			}
			if err := <-met; !errors.Is(err, redlock.ErrDone) {
				t.Errorf("%s: %v, want the result", key, err)
			}
			time.Sleep(5 * time.Second)
			if seen := mustInspect(t, near, key); seenBy(seen, fence) > 0 {
				t.Errorf("%s: the result is back", key)
			}
			own[2].Set(simnet.Weather{})
			time.Sleep(5 * time.Second)
		}
	})
}
