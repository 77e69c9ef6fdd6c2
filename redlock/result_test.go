package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// recalled returns the error of a call that meets a result.
func recalled(t testing.TB, l *redlock.Locker, key string) *redlock.DoneError {
	t.Helper()
	var done *redlock.DoneError
	eventually(t, bound, "the masters answer in time", func() bool { // on a busy machine they may not
		lock, err := l.TryLock(t.Context(), key, redlock.WithRecall())
		if lock != nil || !errors.As(err, &done) && !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, redlock.ErrUnreadable) {
			t.Fatalf("TryLock: %v, %v, want a *DoneError", lock, err)
		}
		return done != nil
	})
	return done
}

// remembering returns the servers on which a result is remembered.
func remembering(t testing.TB, servers []*redistest.Server, key string) (names []string) {
	t.Helper()
	for _, s := range servers {
		if s.Client().Exists(context.Background(), redisKey(key)+":result").Val() == 1 {
			names = append(names, s.URL())
		}
	}
	return names
}

func TestResult(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), redlock.MaxResult/16)
	for name, urls := range map[string][]string{
		"memory": {"memory://"}, "three in memory": {"memory://a", "memory://b", "memory://c"},
		"one server": redistest.URLs(redistest.Start(t, 1)), "three servers": redistest.URLs(redistest.Start(t, 3)),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLocker(t, urls)
			for _, result := range [][]byte{{}, []byte("paid\r\n\x00"), long} {
				var key string
				var lock *redlock.Lock
				try := 0
				eventually(t, bound, "a quorum confirms the result in time", func() bool {
					try++
					key = fmt.Sprint("pay", len(result), " ", try)
					lock = mustLock(t, l, key, redlock.WithRecall())
					return unlockWith(t, lock, result, time.Minute)
				})
				done := recalled(t, l, key)
				if !bytes.Equal(done.Result, result) || done.Fence != lock.Fence() || done.Keep <= 0 || done.Keep > time.Minute {
					t.Errorf("%d bytes of fence %d for %v, want %d of %d for a minute", len(done.Result), done.Fence, done.Keep, len(result), lock.Fence())
				}
				if _, err := l.Lock(t.Context(), key, redlock.WithRecall()); !errors.Is(err, redlock.ErrDone) {
					t.Errorf("Lock: %v", err)
				}
				again := mustLock(t, l, key) // without WithRecall
				if again.Fence() <= lock.Fence() {
					t.Errorf("fence %d after %d", again.Fence(), lock.Fence())
				}
				mustUnlock(t, again)
			}
		})
	}
}

func TestResultIsForgottenInTime(t *testing.T) {
	l, servers := onServers(t, 3)
	unlockWith(t, mustLock(t, l, "k"), []byte("x"), 50*time.Millisecond)
	eventually(t, bound, "the result is forgotten", func() bool {
		lock, err := l.TryLock(t.Context(), "k", redlock.WithRecall())
		if err == nil {
			mustUnlock(t, lock)
		}
		return err == nil
	})
	eventually(t, bound, "no master has it", func() bool { return remembering(t, servers, "k") == nil }) // the last may have stored it late
}

func TestResultsThatAreRefused(t *testing.T) {
	l, servers := onServers(t, 1)
	for name, unlock := range map[string]func(*redlock.Lock) error{
		"at most 1048576": func(k *redlock.Lock) error { return k.UnlockWith(make([]byte, redlock.MaxResult+1), time.Minute) },
		"at least 1ms":    func(k *redlock.Lock) error { return k.UnlockWith(nil, time.Microsecond) },
	} {
		if err := unlock(mustLock(t, l, "k")); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
		mustUnlock(t, mustLock(t, l, "k", redlock.WithRecall()))
	}
	both, err := l.LockAll(t.Context(), []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if err := both.UnlockWith(nil, time.Minute); err == nil || !strings.Contains(err.Error(), "several keys") {
		t.Errorf("several keys: %v", err)
	}
	if _, err := l.LockAll(t.Context(), []string{"a", "b"}, redlock.WithRecall(), redlock.WithWait(0)); err == nil || errors.Is(err, redlock.ErrHeld) {
		t.Errorf("WithRecall for several keys: %v", err)
	}
	if left := remembering(t, servers, "k"); left != nil {
		t.Errorf("%v have a result", left)
	}
}

// TestLostLockLeavesNoResult: a holder whose lease was lost stores nothing, whoever has the key now.
func TestLostLockLeavesNoResult(t *testing.T) {
	l, servers := onServers(t, 3)
	for name, lose := range map[string]func(s *redistest.Server){
		"expired": func(s *redistest.Server) { s.Client().Del(context.Background(), redisKey("k")) },
		"stolen":  func(s *redistest.Server) { steal(t, s, "k", time.Minute) },
	} {
		err := answered(t, func() error {
			lock := mustLock(t, l, "k")
			eventually(t, bound, "all have the key", func() bool { // an acquire that is under way would take it again
				return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.Client().Exists(t.Context(), redisKey("k")).Val() == 0 })
			})
			for _, s := range servers[:2] {
				lose(s)
			}
			err := lock.UnlockWith([]byte(name), time.Minute)
			for _, s := range servers {
				s.Client().Del(context.Background(), redisKey("k"))
			}
			return err
		})
		if !errors.Is(err, redlock.ErrExpired) && !errors.Is(err, redlock.ErrNotOwner) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := remembering(t, servers, "k"); len(left) > 1 { // the third may remember it: its key was not touched
		t.Errorf("%v have the result of a lost lock", left)
	}
	lock := mustLock(t, l, "other", redlock.WithMaxHold(time.Millisecond))
	<-lock.Context().Done()
	if err := lock.UnlockWith([]byte("late"), time.Minute); !errors.Is(err, redlock.ErrMaxHold) {
		t.Errorf("after its max hold: %v", err)
	}
	if left := remembering(t, servers, "other"); left != nil {
		t.Errorf("%v have the result of a lost lock", left)
	}
}

// TestResultOnFewMasters: a result that only one master remembers is met, and then remembered by all.
func TestResultOnFewMasters(t *testing.T) {
	l, servers := onServers(t, 3)
	leaveResult(t, l, "k", "paid")
	for _, s := range servers[:2] {
		s.Client().Del(context.Background(), redisKey("k")+":result")
	}
	recalled(t, l, "k")
	eventually(t, bound, "all remember it again", func() bool { // also one that didn't answer in time
		recalled(t, l, "k")
		return len(remembering(t, servers, "k")) == 3
	})
	if done := recalled(t, l, "k"); string(done.Result) != "paid" {
		t.Errorf("%q", done.Result)
	}
}

// TestLargestFenceCounts: of two results, that of the last lock counts, and replaces the other.
// A short one comes with the refusal, and a long one doesn't.
func TestLargestFenceCounts(t *testing.T) {
	l, servers := onServers(t, 3)
	for _, last := range []string{"second", strings.Repeat("2", 100_000)} {
		key := fmt.Sprint("k", len(last))
		first := mustLock(t, l, key)
		unlockWith(t, first, []byte("first"), time.Minute)
		second := leaveResult(t, l, key, last) // it doesn't recall, as one that has not met the result
		servers[0].Client().HSet(context.Background(), redisKey(key)+":result", "data", "first", "fence", first.Fence())
		eventually(t, bound, "the first is replaced", func() bool {
			if done := recalled(t, l, key); string(done.Result) != last || done.Fence != second {
				t.Fatalf("%.9q of %d", done.Result, done.Fence)
			}
			return servers[0].Client().HGet(context.Background(), redisKey(key)+":result", "data").Val() == last
		})
	}
}

// TestWhatResultsSurvive: the cells of the table in docs/guarantees.md.
func TestWhatResultsSurvive(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		a := net.Servers
		leave := func(key string) { unlockWith(t, mustLock(t, l, key), []byte("paid"), time.Minute) }
		met := func(key string, away ...int) {
			t.Helper()
			for _, i := range away {
				a[i].Hang()
			}
			if done := recalled(t, l, key); string(done.Result) != "paid" {
				t.Errorf("%q", done.Result)
			}
			for _, i := range away {
				a[i].Resume()
			}
		}
		empty := func(i int) {
			a[i].Reboot()
			synctest.Wait()
			eventually(t, bound, "the empty server votes", func() bool { return l.Status().Available == 3 })
		}
		all := func(key string) {
			t.Helper()
			eventually(t, bound, "all remember it", func() bool {
				met(key)
				return !slices.ContainsFunc(a, func(s *simnet.Server) bool { return s.Result(key) == "" })
			})
		}
		leave("three")
		all("three")
		met("three", 0)
		empty(0)
		met("three")
		met("three", 1)
		all("three")

		a[2].Kill()
		leave("two")
		a[2].Restart()
		eventually(t, bound, "the empty server votes", func() bool { return l.Status().Available == 3 })
		met("two", 0)
		all("two")

		leave("lost")
		all("lost")
		empty(0)
		empty(1)
		a[2].Hang()
		mustUnlock(t, mustLock(t, l, "lost", redlock.WithRecall()))
		a[0].Kill()
		if _, err := l.TryLock(t.Context(), "three", redlock.WithRecall()); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("with one master of three: %v", err)
		}
	})
}
