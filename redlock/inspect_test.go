package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// inspect asks until a quorum answers in time, which a busy one may not.
func inspect(t testing.TB, l *redlock.Locker, key string) (seen *redlock.Inspection) {
	t.Helper()
	eventually(t, bound, "a quorum answers", func() (done bool) {
		var err error
		seen, err = l.Inspect(t.Context(), key)
		if err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatalf("inspect %q: %v", key, err)
		}
		return err == nil
	})
	return seen
}

// inspectWhole waits until all masters have given the key to this process: a quorum of them is enough for a lock.
func inspectWhole(t testing.TB, l *redlock.Locker, key, holder string) (seen *redlock.Inspection) {
	t.Helper()
	eventually(t, bound, "all masters have the lock", func() bool {
		seen = inspect(t, l, key)
		return !slices.ContainsFunc(seen.Masters, func(m redlock.InspectedMaster) bool { return m.Holder != holder })
	})
	return seen
}

// requireHolder wants the key to be held by this process, with the fence of the lock.
func requireHolder(t testing.TB, seen *redlock.Inspection, holder string, lock *redlock.Lock) {
	t.Helper()
	missing := slices.ContainsFunc(seen.Masters, func(m redlock.InspectedMaster) bool { return m.Err != nil })
	right := seen.Fence == lock.Fence() || missing && seen.Fence > lock.Fence()
	if !seen.Held || seen.Holder != holder || !right || seen.TTL <= 0 || seen.TTL > longTTL {
		t.Errorf("%q: held %v by %q with fence %d for %v, want %q and %d", seen.Key, seen.Held, seen.Holder, seen.Fence, seen.TTL, holder, lock.Fence())
	}
	smaller := 0
	for _, m := range seen.Masters {
		if m.Holder == holder && (m.Err != nil || m.Token == "" || m.TTL <= 0) {
			t.Errorf("master %s: %+v", m.Name, m)
		}
		if m.Err == nil && m.Fence < lock.Fence() {
			smaller++
		}
	}
	if smaller > (len(seen.Masters)-1)/2 {
		t.Errorf("no quorum has stored the fence %d: %+v", lock.Fence(), seen.Masters)
	}
}

// deployments start masters, and return what makes processes on them, by their names.
var deployments = map[string]func(t *testing.T, opts ...redlock.Option) func(name string) *redlock.Locker{
	"servers": func(t *testing.T, opts ...redlock.Option) func(string) *redlock.Locker {
		servers := redistest.Start(t, 3)
		return func(name string) *redlock.Locker {
			return newLocker(t, redistest.URLs(servers), append(opts, redlock.WithInstance(name))...)
		}
	},
	"cluster": func(t *testing.T, opts ...redlock.Option) func(string) *redlock.Locker {
		nodes := redistest.StartCluster(t, 3, 0)
		return func(name string) *redlock.Locker {
			return onCluster(t, nodes, append(opts, redlock.WithInstance(name))...)
		}
	},
	"memory": func(t *testing.T, opts ...redlock.Option) func(string) *redlock.Locker { // others can't have its locks
		l := newLocker(t, []string{"memory://1", "memory://2", "memory://3"}, append(opts, redlock.WithInstance("a"))...)
		return func(string) *redlock.Locker { return l }
	},
}

// oddKeys are names that a protocol might get wrong.
var oddKeys = []string{"order:42", "}", "{}", "a b", "a\nb\r\n", "\x00\xff", "+", "ä", strings.Repeat("k", 300)}

// TestInspect: one process sees what another holds and who waits for it, by their names.
func TestInspect(t *testing.T) {
	t.Parallel()
	for name, open := range deployments {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := open(t)
			a, b := process("a"), process("b")
			for _, key := range oddKeys {
				if seen := inspect(t, b, key); seen.Held || seen.Key != key || seen.Fence != 0 || seen.Holder != "" || seen.TTL != 0 {
					t.Errorf("a free key: %+v", seen)
				}
				lock := mustLock(t, a, key)
				requireHolder(t, inspectWhole(t, b, key, "a"), "a", lock)
				mustUnlock(t, lock)
			}
			all, err := a.LockAll(t.Context(), oddKeys)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range oddKeys {
				requireHolder(t, inspectWhole(t, b, key, "a"), "a", all)
			}
			if name == "memory" {
				mustUnlock(t, all)
				return
			}
			waited := make(chan *redlock.Lock)
			began := time.Now()
			go func() { waited <- mustLock(t, b, oddKeys[0]) }()
			var seen *redlock.Inspection
			eventually(t, bound, "b waits on all masters", func() bool {
				seen = inspect(t, a, oddKeys[0])
				return !slices.ContainsFunc(seen.Masters, func(m redlock.InspectedMaster) bool { return len(m.Queue) != 1 })
			})
			for _, m := range seen.Masters {
				if w := m.Queue[0]; w.Process != "b" || w.Since.Before(began.Add(-time.Second)) || w.Since.After(time.Now().Add(time.Second)) {
					t.Errorf("in the queue on %s: %+v", m.Name, w)
				}
			}
			mustUnlock(t, all)
			lock := <-waited
			requireHolder(t, inspect(t, a, oddKeys[0]), "b", lock)
			mustUnlock(t, lock)
		})
	}
}

// TestInspectWithIllMasters: one that hangs, one that is away; and no quorum. Nobody waits for long.
func TestInspectWithIllMasters(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTimeout(time.Second/2))
	lock := mustLock(t, l, "key")
	eventually(t, bound, "all masters have the lock", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return holderOn(s, "key") == "" })
	})
	servers[0].Pause()
	seen := inspect(t, l, "key")
	requireHolder(t, seen, l.Instance(), lock)
	if err := seen.Masters[0].Err; err == nil || !strings.Contains(err.Error(), "no reply") {
		t.Errorf("the master that hangs: %v", err)
	}
	servers[1].Kill()
	eventually(t, bound, "the one master of three answers in time", func() bool {
		var quorum *redlock.QuorumError
		var err error
		if seen, err = l.Inspect(t.Context(), "key"); !errors.As(err, &quorum) {
			t.Fatalf("with one master of three: %v", err)
		}
		return quorum.Answered == 1 && len(quorum.Masters) == 2
	})
	if seen.Held || seen.Masters[0].Err == nil || seen.Masters[1].Err == nil || seen.Masters[2].Err != nil || seen.Masters[2].Token == "" {
		t.Errorf("with one master of three: %+v", seen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	servers[2].Pause()
	if _, err := l.Inspect(ctx, "key"); !errors.Is(err, redlock.ErrNoQuorum) || !errors.Is(err, context.Canceled) {
		t.Errorf("of a caller that has left: %v", err)
	}
	servers[0].Resume()
	servers[2].Resume()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if seen, err := l.Inspect(t.Context(), "key"); seen != nil || err != redlock.ErrClosed {
		t.Errorf("after Close: %v, %v", seen, err)
	}
}

// TestInspectDuringClose: no inspection outlives the Locker, even while its masters hang.
func TestInspectDuringClose(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTimeout(longTTL/3))
	lockUnlock(t, l, "key")
	for _, s := range servers {
		s.Pause()
	}
	var inspections sync.WaitGroup
	for i := range 20 {
		inspections.Go(func() {
			if _, err := l.Inspect(t.Context(), fmt.Sprint(i)); !errors.Is(err, redlock.ErrClosed) {
				t.Errorf("closed during an inspection: %v", err)
			}
		})
	}
	closed := make(chan error)
	go func() { closed <- l.Close() }()
	inspections.Wait()
	for _, s := range servers {
		s.Resume()
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestInspectStrangers: a token of an earlier version, of a process that is gone, or of no version at all.
func TestInspectStrangers(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 1)
	ctx := t.Context()
	for token, want := range map[string]redlock.InspectedMaster{
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ":       {Token: "ABCDEFGHIJKL", Holder: "ABCDEFGH"},
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ+":      {Token: "ABCDEFGHIJKL", Holder: "ABCDEFGH"},
		"0123456789abcdef0123456789abcdef": {Token: "0123456789ab", Holder: "01234567"},
		"another":                          {Token: "ano", Holder: "ano"},
		"x":                                {},
	} {
		servers[0].Client().Del(ctx, redisKey("key"))
		servers[0].Client().RPush(ctx, redisKey("key"), token)
		servers[0].Client().PExpire(ctx, redisKey("key"), time.Minute)
		seen := inspect(t, l, "key")
		if m := seen.Masters[0]; !seen.Held || m.Token != want.Token || m.Holder != want.Holder || seen.Holder != want.Holder || m.TTL <= 0 {
			t.Errorf("token %s: %+v", token, seen)
		}
	}
	servers[0].Client().Set(ctx, redisKey("key"), "no list", time.Minute)
	if seen, err := l.Inspect(ctx, "key"); !errors.Is(err, redlock.ErrNoQuorum) || seen.Masters[0].Err == nil {
		t.Errorf("a key of another type: %+v, %v", seen, err)
	}
	servers[0].Client().Del(ctx, redisKey("key"))
}
