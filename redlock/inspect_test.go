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

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// inspect asks until a quorum answers in time, which a busy one may not.
func mustInspect(t testing.TB, l *redlock.Locker, key string) (seen *inspect.View) {
	t.Helper()
	eventually(t, bound, "a quorum answers", func() (done bool) {
		var err error
		seen, err = inspect.Key(t.Context(), l, key)
		if err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatalf("inspect %q: %v", key, err)
		}
		return err == nil
	})
	return seen
}

func init() {
	redlock.Operator.Force = inspect.Force
	redlock.Operator.Holder = func(ctx context.Context, l *redlock.Locker, key string, slot int) (shown string, stored, fence uint64) {
		seen, err := inspect.Slot(ctx, l, key, slot)
		if err != nil || !seen.Held {
			return "", 0, 0
		}
		masters := make(map[string]int) // of each token
		for _, m := range seen.Masters {
			if masters[m.Token]++; m.Token != "" && masters[m.Token] > len(seen.Masters)/2 {
				shown, stored = m.Token, m.Fence
			}
		}
		return shown, stored, seen.Fence
	}
}

// requireHolder wants the key to be held by this process on all masters that answer, with the fence of the lock.
func requireHolder(t testing.TB, seen *inspect.View, holder string, lock *redlock.Lock) {
	t.Helper()
	missing := slices.ContainsFunc(seen.Masters, func(m inspect.Master) bool { return m.Err != nil })
	right := seen.Fence == lock.Fence() || missing && seen.Fence > lock.Fence()
	if !seen.Held || seen.Holder != holder || !right || seen.TTL <= 0 || seen.TTL > longTTL {
		t.Errorf("%q: held %v by %q with fence %d for %v, want %q and %d", seen.Key, seen.Held, seen.Holder, seen.Fence, seen.TTL, holder, lock.Fence())
	}
	smaller := 0
	for _, m := range seen.Masters {
		if m.Err == nil && (m.Holder != holder || m.Token == "" || m.TTL <= 0) {
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

// TestInspect: one process sees what another holds and who waits for it, by their names.
func TestInspect(t *testing.T) {
	onDeployments(t, func(t *testing.T, process func(string) *redlock.Locker) {
		a, b := process("a"), process("b")
		for _, key := range oddKeys {
			if seen := mustInspect(t, b, key); seen.Held || seen.Key != key || seen.Fence != 0 || seen.Holder != "" || seen.TTL != 0 {
				t.Errorf("a free key: %+v", seen)
			}
			lock := mustLock(t, a, key)
			time.Sleep(time.Millisecond) // all masters have it
			requireHolder(t, mustInspect(t, b, key), "a", lock)
			mustUnlock(t, lock)
		}
		all, err := a.LockAll(t.Context(), oddKeys)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		for _, key := range oddKeys {
			requireHolder(t, mustInspect(t, b, key), "a", all)
		}
		if a == b {
			mustUnlock(t, all)
			return
		}
		waited := make(chan *redlock.Lock)
		began := time.Now()
		go func() { waited <- mustLock(t, b, oddKeys[0]) }()
		time.Sleep(time.Second)
		for _, m := range mustInspect(t, a, oddKeys[0]).Masters {
			if len(m.Queue) != 1 || m.Queue[0].Process != "b" || m.Queue[0].Since.Sub(began).Abs() > time.Millisecond {
				t.Errorf("in the queue on %s, since %v: %+v", m.Name, began, m.Queue)
			}
		}
		mustUnlock(t, all)
		lock := <-waited
		requireHolder(t, mustInspect(t, a, oddKeys[0]), "b", lock)
		mustUnlock(t, lock)
	})
}

// TestInspectWithIllMasters: one that hangs, one that is away; and no quorum. Nobody waits for long.
func TestInspectWithIllMasters(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		net.Servers[0].Hang()
		seen := mustInspect(t, l, "key")
		requireHolder(t, seen, inside.Of(l).Instance, lock)
		if err := seen.Masters[0].Err; err == nil || !strings.Contains(err.Error(), "no reply") {
			t.Errorf("the master that hangs: %v", err)
		}
		net.Servers[1].Kill()
		seen, err := inspect.Key(t.Context(), l, "key")
		var quorum *redlock.QuorumError
		if !errors.As(err, &quorum) || quorum.Answered != 1 || len(quorum.Masters) != 2 {
			t.Errorf("with one master of three: %v", err)
		}
		if seen.Held || seen.Masters[0].Err == nil || seen.Masters[1].Err == nil || seen.Masters[2].Err != nil || seen.Masters[2].Token == "" {
			t.Errorf("with one master of three: %+v", seen)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		net.Servers[2].Hang()
		began := time.Now()
		if _, err := inspect.Key(ctx, l, "key"); !errors.Is(err, redlock.ErrNoQuorum) || !errors.Is(err, context.Canceled) || time.Since(began) > 0 {
			t.Errorf("of a caller that has left: %v after %v", err, time.Since(began))
		}
		net.Servers[0].Resume()
		net.Servers[2].Resume()
		mustClose(t, l)
		if seen, err := inspect.Key(t.Context(), l, "key"); seen != nil || err != redlock.ErrClosed {
			t.Errorf("after Close: %v, %v", seen, err)
		}
	})
}

// TestInspectDuringClose: no inspection outlives the Locker, even while its masters hang.
func TestInspectDuringClose(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const timeout = simTTL / 3
		l := simLocker(t, net.Masters(), redlock.WithTimeout(timeout))
		lockUnlock(t, l, "key")
		for _, s := range net.Servers {
			s.Hang()
		}
		var inspections sync.WaitGroup
		began := time.Now()
		for i := range 20 {
			inspections.Go(func() {
				if _, err := inspect.Key(t.Context(), l, fmt.Sprint(i)); !errors.Is(err, redlock.ErrClosed) || time.Since(began) >= timeout {
					t.Errorf("closed during an inspection: %v, after %v", err, time.Since(began))
				}
			})
		}
		time.Sleep(time.Millisecond)
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		inspections.Wait()
		for _, s := range net.Servers {
			s.Resume()
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestInspectStrangers: a token of an earlier version, of a process that is gone, or of no version at all.
func TestInspectStrangers(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		for token, want := range map[string]inspect.Master{
			"ABCDEFGHIJKLMNOPQRSTUVWXYZ":       {Token: "ABCDEFGHIJKL", Holder: "ABCDEFGH"},
			"0123456789abcdef0123456789abcdef": {Token: "0123456789ab", Holder: "01234567"},
			"another":                          {Token: "ano", Holder: "ano"},
			"x":                                {},
		} {
			net.Servers[0].Give("key", token, time.Minute)
			seen := mustInspect(t, l, "key")
			if m := seen.Masters[0]; !seen.Held || m.Token != want.Token || m.Holder != want.Holder || seen.Holder != want.Holder || m.TTL <= 0 {
				t.Errorf("token %s: %+v", token, seen)
			}
		}
		net.Servers[0].Refuse("WRONGTYPE Operation against a key holding the wrong kind of value", simnet.Inspect)
		if seen, err := inspect.Key(t.Context(), l, "key"); !errors.Is(err, redlock.ErrNoQuorum) || seen.Masters[0].Err == nil {
			t.Errorf("a key of another type: %+v, %v", seen, err)
		}
	})
}
