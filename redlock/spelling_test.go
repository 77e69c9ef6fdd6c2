package redlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Two spellings of a key, and a key that only Unicode takes for the same.
const upper, lower, kelvin = "Customer:cus_NK", "customer:cus_nk", "customer:cus_n\u212a"

// TestSpellings: keys that differ in the case of ASCII letters alone share a lock, however they are asked for.
func TestSpellings(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		first, second := process("a"), process("b")
		for _, spelled := range [][2]string{{upper, lower}, {lower, upper}} {
			held := mustLock(t, first, spelled[0])
			for name, ask := range asks {
				if err := ask(second, t.Context(), spelled[1], redlock.WithWait(50*time.Millisecond)); !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("%s(%q) beside %q: %v, want ErrHeld", name, spelled[1], spelled[0], err)
				}
				if err := ask(first, held.Context(), spelled[1], redlock.WithWait(50*time.Millisecond)); !errors.Is(err, redlock.ErrHeldByCaller) {
					t.Errorf("%s(%q) within %q: %v, want ErrHeldByCaller", name, spelled[1], spelled[0], err)
				}
			}
			lockUnlock(t, second, kelvin)
			if slot := held.Slot(spelled[1]); slot != 0 {
				t.Errorf("slot %d of %q", slot, spelled[1])
			}
			time.Sleep(5 * time.Second) // the masters know the turn
			for _, key := range spelled {
				seen := mustInspect(t, second, key)
				if !seen.Held || seen.Fence != held.Fence() || seen.Key != key || seen.Turn == nil {
					t.Errorf("%q is seen as %+v, want fence %d with its turn", key, seen, held.Fence())
				}
			}
			if keys := inspect.Keys(first, "CUSTOMER:"); len(keys) != 1 || keys[0].Key != spelled[0] || !keys[0].Held {
				t.Errorf("keys %+v, want %q as it was given", keys, spelled[0])
			}
			if err := inspect.Force(t.Context(), second, spelled[1], 0, held.Fence()); err != nil {
				t.Error(err)
			}
			if ended(t, held.Context()); !errors.Is(held.Err(), redlock.ErrForced) {
				t.Errorf("released by its other spelling: %v", held.Err())
			}
		}
		if a, b := lockname.Hash(upper), lockname.Hash(lower); a != b || a == lockname.Hash(kelvin) {
			t.Errorf("hashes %s, %s", a, b)
		}
	})
}

// TestSpellingsWait: calls for two spellings stand in one line, and have the lock in the order in which they came.
func TestSpellingsWait(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		lockers := []*redlock.Locker{process("a"), process("b")}
		held := mustLock(t, lockers[0], upper)
		served := make(chan int, 6)
		for i := range cap(served) {
			go func() {
				lock := mustLock(t, lockers[i/2%2], []string{lower, upper}[i%2])
				served <- i
				mustUnlock(t, lock)
			}()
			time.Sleep(time.Second)
		}
		mustUnlock(t, held)
		var order []int
		for range cap(served) {
			order = append(order, within(t, served))
		}
		if !slices.IsSorted(order) {
			t.Errorf("served in the order %v", order)
		}
	})
}

// TestSpellingsTogether: a call for several spellings has one lock on them, and calls for overlapping keys don't block each other.
func TestSpellingsTogether(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		l := process("a")
		lock, err := l.LockAll(t.Context(), []string{lower, "z", upper, "Z"})
		if err != nil {
			t.Fatal(err)
		}
		if held := l.Status().Held; held != 2 {
			t.Errorf("%d locks, want 2", held)
		}
		mustUnlock(t, lock)
		if _, err := l.LockAll(t.Context(), []string{lower, upper}, redlock.WithRecall()); err == nil {
			t.Error("two spellings have one result")
		}
		numbers := []redlock.LockOption{redlock.WithConcurrency(1, upper), redlock.WithConcurrency(5, lower)}
		two, err := l.LockAll(t.Context(), []string{upper, lower}, numbers...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := process("b").LockAll(t.Context(), []string{upper, lower}, append(numbers, redlock.WithWait(0))...); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("beside one that may have no other: %v", err)
		}
		if err := two.UnlockWith([]byte("1"), time.Hour); err == nil {
			t.Error("two spellings have left one result")
		}
		one, err := l.LockAll(t.Context(), []string{upper, lower}, redlock.WithConcurrency(2, lower))
		if err != nil {
			t.Fatal(err)
		}
		beside := mustLock(t, process("b"), upper, redlock.WithConcurrency(2))
		mustUnlock(t, beside)
		mustUnlock(t, one)
		done := make(chan struct{})
		for _, keys := range [][]string{{"A", "b"}, {"a", "B"}, {"B", "a"}} {
			go func() {
				for range 20 {
					lock, err := process("c").LockAll(t.Context(), keys)
					if err != nil {
						t.Error(err)
						break
					}
					mustUnlock(t, lock)
				}
				done <- struct{}{}
			}()
		}
		for range 3 {
			within(t, done)
		}
	})
}

// TestSpellingsOnce: work on one spelling of a key doesn't count as done for another. Both run, one after the other, and each has its own result.
func TestSpellingsOnce(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		lockers := []*redlock.Locker{process("a"), process("b")}
		runs, running := make(map[string]int), 0
		once := func(l *redlock.Locker, key string) {
			result, err := l.Once(t.Context(), key, time.Hour, func(context.Context, *redlock.Lock) ([]byte, error) {
				if running++; running > 1 {
					t.Error("two run at once")
				}
				time.Sleep(time.Second)
				running--
				runs[key]++
				return []byte("of " + key), nil
			})
			if err != nil || string(result) != "of "+key {
				t.Errorf("Once(%q): %q, %v", key, result, err)
			}
		}
		done := make(chan struct{})
		for i := range 8 {
			go func() {
				once(lockers[i/2%2], []string{upper, lower}[i%2])
				done <- struct{}{}
			}()
		}
		for range 8 {
			within(t, done)
		}
		if runs[upper] != 1 || runs[lower] != 1 {
			t.Errorf("runs %v, want one for each spelling", runs)
		}
		if _, err := inspect.Forget(t.Context(), lockers[0], upper); err != nil {
			t.Error(err)
		}
		if seen := mustInspect(t, lockers[0], lower); !seen.Remembered {
			t.Errorf("of %q: %+v, want it still remembered", lower, seen)
		}
		if seen := mustInspect(t, lockers[0], upper); seen.Result.Fence != 0 {
			t.Errorf("of %q: %+v, want it forgotten", upper, seen)
		}
		for key, want := range map[string]bool{upper + "2": true, lower + "2": true} {
			for range 2 {
				ran, err := lockers[0].OncePer(t.Context(), key, time.Hour, func(context.Context, *redlock.Lock) error { return nil })
				if err != nil || ran != want {
					t.Errorf("OncePer(%q): %v, %v, want %v", key, ran, err, want)
				}
				want = false
			}
		}
	})
}

// TestSpellingsInLine: calls of one process that ask while another one meets a result get it if it is theirs. The others do their own work.
func TestSpellingsInLine(t *testing.T) {
	for name, lock := range map[string]func(*redlock.Locker, context.Context, string, ...redlock.LockOption) (*redlock.Lock, error){"Lock": (*redlock.Locker).Lock, "TryLock": (*redlock.Locker).TryLock} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := lockerOn(t, view(farServers(3), func(m *farMaster) { m.there = after(20 * time.Millisecond) }))
				time.Sleep(time.Second)
				if err := mustLock(t, l, upper).UnlockWith([]byte("paid"), time.Hour); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				errs := make(chan error)
				ask := func(key string) { errs <- freed(lock(l, t.Context(), key, redlock.WithRecall())) }
				go ask(upper)
				time.Sleep(time.Millisecond)
				for range 5 {
					go ask(lower)
					go ask(upper)
				}
				var done, got int
				for range 11 {
					switch err := within(t, errs); {
					case errors.Is(err, redlock.ErrDone):
						done++
					case err == nil:
						got++
					case !errors.Is(err, redlock.ErrHeld):
						t.Error(err)
					}
				}
				if done != 6 || got == 0 {
					t.Errorf("%d were told that it is done, want 6; %d got the lock", done, got)
				}
			})
		})
	}
}

// TestUnreadableOfAnotherSpelling: a call in line behind one that can't read its result isn't told that its own work is done.
func TestUnreadableOfAnotherSpelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockerOn(t, view(farServers(3), func(m *farMaster) {
			m.there = after(time.Millisecond)
			m.sees = func(cmds []*protocol.Command) {
				for _, cmd := range cmds {
					if cmd.Op == protocol.OpRecall {
						cmd.Key = "nowhere"
					}
				}
			}
		}))
		if err := mustLock(t, l, upper).UnlockWith(make([]byte, 5<<10), time.Hour); err != nil {
			t.Fatal(err)
		}
		first := make(chan error)
		go func() {
			first <- freed(l.Lock(t.Context(), upper, redlock.WithRecall(), redlock.WithWait(time.Minute)))
		}()
		time.Sleep(time.Second)
		for _, opts := range [][]redlock.LockOption{{redlock.WithWait(0)}, {redlock.WithWait(50 * time.Millisecond)}} {
			if err := freed(l.Lock(t.Context(), upper, append(opts, redlock.WithRecall())...)); !errors.Is(err, redlock.ErrUnreadable) {
				t.Errorf("for the same result: %v, want ErrUnreadable", err)
			}
			for name, err := range map[string]error{
				"without results":        freed(l.Lock(t.Context(), upper, opts...)),
				"for another spelling's": freed(l.Lock(t.Context(), lower, append(opts, redlock.WithRecall())...)),
			} {
				if errors.Is(err, redlock.ErrUnreadable) || !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("%s: %v, want ErrHeld", name, err)
				}
			}
		}
		if err := within(t, first); !errors.Is(err, redlock.ErrUnreadable) {
			t.Error(err)
		}
	})
}
