package redlock_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

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
		return seenBy(inspect(t, l, key), lock.Fence()) == len(l.Status().Masters)
	})
	return lock.Fence()
}

// seenBy returns how many masters remember the result of the lock with this fence.
func seenBy(seen *redlock.Inspection, fence uint64) (n int) {
	for _, m := range seen.Masters {
		if m.Result.Fence == fence {
			n++
		}
	}
	return n
}

// inspectAll waits until so many masters answer in time, which on a busy machine they may not.
func inspectAll(t *testing.T, l *redlock.Locker, key string, masters int) (seen *redlock.Inspection) {
	t.Helper()
	eventually(t, bound, "all masters answer", func() bool {
		seen = inspect(t, l, key)
		n := 0
		for _, m := range seen.Masters {
			if m.Err == nil {
				n++
			}
		}
		return n >= masters
	})
	return seen
}

// TestInspectResult: each master shows the last result without its content, and the whole whether a quorum remembers it.
func TestInspectResult(t *testing.T) {
	t.Parallel()
	for name, open := range deployments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := open(t)
			a, b := process("a"), process("b")
			for i, key := range oddKeys[:7] {
				if seen := inspect(t, b, key); seen.Remembered || seen.Result != (redlock.InspectedResult{}) {
					t.Fatalf("before: %+v", seen)
				}
				result := strings.Repeat("x", i*i*1000)
				fence := leaveResult(t, a, key, result)
				seen := inspectAll(t, b, key, len(b.Status().Masters))
				whole := seen.Result
				if !seen.Remembered || seen.Held || whole.Fence != fence || whole.Bytes != len(result) || whole.Keep <= 0 || whole.Keep > time.Hour {
					t.Errorf("%q: %+v, want %d bytes of fence %d for an hour", key, seen, len(result), fence)
				}
				for _, m := range seen.Masters {
					if m.Result.Fence != fence || m.Result.Bytes != len(result) || m.Result.Keep < whole.Keep-time.Minute || m.Result.Keep > time.Hour {
						t.Errorf("%s: %+v", m.Name, m)
					}
				}
			}
		})
	}
}

// TestInspectResultOfFew: of several results the last one counts, and whether a quorum remembers that one.
func TestInspectResultOfFew(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	first := leaveResult(t, l, "k", "first")
	second := leaveResult(t, l, "k", "the second")
	result := redisKey("k") + ":result"
	command(t, servers[0], "HSET", result, "fence", strconv.FormatUint(first, 10), "data", "first")
	command(t, servers[2], "PEXPIRE", result, "60000")
	if seen := inspectAll(t, l, "k", 3); !seen.Remembered || seen.Result.Fence != second || seen.Result.Bytes != len("the second") || seen.Result.Keep > time.Minute || seen.Masters[0].Result.Fence != first {
		t.Errorf("two of three: %+v", seen)
	}
	command(t, servers[1], "DEL", result)
	if seen := inspectAll(t, l, "k", 3); seen.Remembered || seen.Result.Fence != second || seen.Result.Keep > time.Minute || seen.Masters[1].Result.Fence != 0 {
		t.Errorf("one of three: %+v", seen)
	}
	servers[2].Kill()
	if seen := inspect(t, l, "k"); seen.Remembered || seen.Result.Fence != first || seen.Masters[2].Err == nil {
		t.Errorf("an older one on one of two: %+v", seen)
	}
}

// forget has a result forgotten on all masters: on a busy machine not all may confirm that in time, and it is repeated.
func forget(t testing.TB, l *redlock.Locker, key string) (err error) {
	t.Helper()
	eventually(t, bound, "all masters answer in time", func() bool {
		var left []*redlock.MasterError
		left, err = l.Forget(t.Context(), key)
		return left == nil && !errors.Is(err, redlock.ErrNoQuorum)
	})
	return err
}

// TestForget: the work is done again, once, wherever its result was forgotten.
func TestForget(t *testing.T) {
	t.Parallel()
	for name, open := range deployments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := open(t)
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
				if seen := inspect(t, b, key); seen.Result.Fence != fence || !seen.Remembered {
					t.Errorf("forgotten while the key is held: %+v", seen)
				}
				mustUnlock(t, held)
				eventually(t, bound, "the key is free", func() bool {
					err := forget(t, b, key)
					if err != nil && !errors.Is(err, redlock.ErrHeld) && !errors.Is(err, redlock.ErrNotRemembered) { // forgotten by a call that has heard that too late
						t.Fatalf("forget: %v", err)
					}
					return !errors.Is(err, redlock.ErrHeld)
				})
				if seen := inspect(t, a, key); seen.Remembered || seen.Result.Fence != 0 || seen.Held {
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
}

// TestForgetWithIllMasters: a quorum is enough, and the master that may still remember is named; with less nothing is certain.
func TestForgetWithIllMasters(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTimeout(time.Second/2))
	for _, key := range []string{"a", "b", "c"} {
		leaveResult(t, l, key, "paid")
	}
	servers[0].Pause()
	var left []*redlock.MasterError
	late := false
	err := answered(t, func() (err error) {
		left, err = l.Forget(t.Context(), "a")
		if late && errors.Is(err, redlock.ErrNotRemembered) { // by the call before, whose replies were late
			err = nil
		} else if late && errors.Is(err, redlock.ErrHeld) { // by that call
			err = redlock.ErrNoQuorum
		}
		late = late || errors.Is(err, redlock.ErrNoQuorum)
		return err
	})
	if err != nil || len(left) != 1 || left[0].Master != servers[0].URL() || !strings.Contains(left[0].Err.Error(), "no reply") {
		t.Errorf("with one master that hangs: %v, %v", left, err)
	}
	if names := remembering(t, servers[1:], "a"); names != nil {
		t.Errorf("%v remember it", names)
	}
	servers[0].Resume()
	forgotten := func(key string) bool {
		left, err := l.Forget(t.Context(), key)
		return left == nil && (err == nil || errors.Is(err, redlock.ErrNotRemembered)) && remembering(t, servers, key) == nil
	}
	eventually(t, bound, "the third has forgotten it", func() bool { return forgotten("a") })

	for _, s := range servers[1:] { // on one master only
		s.Client().Del(context.Background(), redisKey("b")+":result")
	}
	eventually(t, bound, "the one master has forgotten it", func() bool { return forgotten("b") })

	servers[1].Kill()
	servers[2].Kill()
	eventually(t, bound, "the one master of three answers in time", func() bool {
		var quorum *redlock.QuorumError
		left, err := l.Forget(t.Context(), "c")
		if !errors.As(err, &quorum) || left != nil {
			t.Fatalf("with one master of three: %v, %v", left, err)
		}
		return len(quorum.Masters) == 2
	})
	if names := remembering(t, servers[:1], "c"); !slices.Equal(names, []string{servers[0].URL()}) {
		t.Errorf("remembered by %v", names)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Forget(t.Context(), "c"); err != redlock.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}
