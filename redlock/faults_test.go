package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// onAll waits until all servers, not only those that were a quorum first, hold so many keys.
func onAll(t *testing.T, servers []*redistest.Server, keys int) {
	t.Helper()
	for _, s := range servers {
		eventually(t, bound, fmt.Sprintf("%d keys on %s", keys, s.Addr()), func() bool { return len(s.Keys()) == keys })
	}
}

func TestMinorityKilled(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	held := mustLock(t, l, "held")
	onAll(t, servers, 1)
	servers[0].Kill()
	mustUnlock(t, held)
	lockUnlock(t, l, "key")
	redistest.RequireNoKeys(t, servers[1:])
}

// TestMinorityHung has a timeout that nobody can have waited for in the time that it allows.
func TestMinorityHung(t *testing.T) {
	const timeout = longTTL / 3
	l, servers := onServers(t, 3, redlock.WithTimeout(timeout))
	lockUnlock(t, l, "warm up")
	held := mustLock(t, l, "held")
	expired := mustLock(t, l, "expired")
	onAll(t, servers, 2)
	servers[0].Pause()
	start := time.Now()
	mustUnlock(t, held)
	lock := mustLock(t, l, "key")
	if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
		t.Errorf("TryLock on a held key: %v, want ErrHeld", err)
	}
	mustUnlock(t, lock)
	for _, s := range servers[1:] {
		if err := s.Client().Del(t.Context(), redisKey("expired")).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := expired.Unlock(); !errors.Is(err, redlock.ErrExpired) {
		t.Errorf("Unlock of a key that a quorum has lost: %v, want ErrExpired", err)
	}
	if took := time.Since(start); took >= timeout {
		t.Errorf("took %v: somebody has waited for the hung master", took)
	}
	servers[0].Resume()
	redistest.RequireNoKeys(t, servers)
}

// TestMajorityDown also checks that the masters come back into use.
func TestMajorityDown(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name     string
		down, up func(*redistest.Server)
		held     bool // a release is owed: its repetition also finds out that a master is back
	}{
		{"hung", (*redistest.Server).Pause, (*redistest.Server).Resume, true},
		{"hung while idle", (*redistest.Server).Pause, (*redistest.Server).Resume, false},
		{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart, true},
		{"killed while idle", (*redistest.Server).Kill, (*redistest.Server).Restart, false},
	} {
		t.Run(fault.name, func(t *testing.T) {
			l, servers := onServers(t, 3, redlock.WithTimeout(time.Second/2))
			lockUnlock(t, l, "warm up")
			var held *redlock.Lock
			if fault.held {
				held = mustLock(t, l, "held")
			}
			for _, s := range servers[:2] {
				fault.down(s)
			}
			for range 3 { // the first finds it out, the others know
				requireNoQuorum(t, l, servers[:2])
			}
			if fault.held {
				if err := held.Unlock(); !errors.Is(err, redlock.ErrNoQuorum) {
					t.Errorf("Unlock: %v, want ErrNoQuorum", err)
				}
			}
			for _, s := range servers[:2] {
				fault.up(s)
			}
			eventually(t, bound, "TryLock works again", func() bool {
				lock, err := l.TryLock(t.Context(), "key")
				if err == nil {
					mustUnlock(t, lock)
				}
				return err == nil
			})
			redistest.RequireNoKeys(t, servers)
		})
	}
}

// requireNoQuorum tries to lock, and requires that the error names the masters that are down.
func requireNoQuorum(t *testing.T, l *redlock.Locker, down []*redistest.Server) {
	t.Helper()
	var err error
	var quorum *redlock.QuorumError
	eventually(t, bound, "no other master is late", func() bool {
		_, err = l.TryLock(t.Context(), "key")
		if !errors.As(err, &quorum) || !errors.Is(err, redlock.ErrNoQuorum) || errors.Is(err, redlock.ErrHeld) {
			t.Fatalf("TryLock with %d masters down: %v, want a QuorumError", len(down), err)
		}
		return !slices.ContainsFunc(quorum.Masters, func(m *redlock.MasterError) bool {
			return !slices.ContainsFunc(down, func(s *redistest.Server) bool { return s.URL() == m.Master })
		})
	})
	if len(quorum.Masters) != len(down) || quorum.Answered >= quorum.Quorum {
		t.Errorf("%d of %d answered, failed are %v; want the %d that are down", quorum.Answered, quorum.Quorum, quorum.Masters, len(down))
	}
	for _, s := range down {
		if !strings.Contains(err.Error(), s.URL()) {
			t.Errorf("error %q doesn't name %s", err, s.URL())
		}
	}
}

// TestQuorumErrorTellsTheMasters: a master that hangs, and need not be waited for, isn't counted as failed.
func TestQuorumErrorTellsTheMasters(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTimeout(time.Second))
	lockUnlock(t, l, "key")
	for _, s := range servers[:2] {
		s.Kill()
	}
	eventually(t, bound, "both are seen to be down", func() bool {
		_, err := l.TryLock(t.Context(), "key")
		var quorum *redlock.QuorumError
		return errors.As(err, &quorum) && len(quorum.Masters) == 2
	})
	servers[2].Pause()
	_, err := l.TryLock(t.Context(), "key")
	servers[2].Resume()
	if want := "no quorum: 1 of 3 masters usable, 2 needed: "; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestMissedReleaseIsDelivered(t *testing.T) {
	l, servers := onServers(t, 3, redlock.WithTimeout(100*time.Millisecond))
	lock := mustLock(t, l, "key")
	onAll(t, servers, 1)
	servers[0].Pause()
	mustUnlock(t, lock)
	late := mustLock(t, l, "late") // its acquire and its release reach the master only when it wakes up
	mustUnlock(t, late)
	time.Sleep(2 * 100 * time.Millisecond) // beyond the timeout
	servers[0].Resume()
	redistest.RequireNoKeys(t, servers)
}

// TestMissedReleaseIsRepeated breaks the connection on which a hung master would have read the release.
func TestMissedReleaseIsRepeated(t *testing.T) {
	l, servers := onServers(t, 3, redlock.WithTimeout(100*time.Millisecond))
	lock := mustLock(t, l, "key")
	onAll(t, servers, 1)
	ctx := context.Background()
	if err := servers[0].Client().ConfigSet(ctx, "maxclients", "1").Err(); err != nil {
		t.Fatal(err)
	}
	killConnections(t, servers[0])
	mustUnlock(t, lock)
	if len(servers[0].Keys()) != 1 {
		t.Fatal("the master has got the release, though it takes no connection")
	}
	if err := servers[0].Client().ConfigSet(ctx, "maxclients", "100").Err(); err != nil {
		t.Fatal(err)
	}
	redistest.RequireNoKeys(t, servers)
}

// killConnections returns when the kill can be seen: one at the moment of a command costs that command.
func killConnections(t *testing.T, s *redistest.Server) {
	t.Helper()
	defer time.Sleep(2 * time.Millisecond)
	if err := s.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err(); err != nil {
		t.Fatal(err)
	}
}

func TestConnectionKilled(t *testing.T) {
	l, servers := onServers(t, 3)
	for range 10 {
		lock := mustLock(t, l, "key")
		for _, s := range servers {
			killConnections(t, s)
		}
		_ = unlocked(t, lock) // what was sent just before a kill is seen isn't confirmed, but repeated
		for _, s := range servers {
			killConnections(t, s)
		}
		lockUnlock(t, l, "key")
	}
	redistest.RequireNoKeys(t, servers)
}

// TestCanceledAnywhere cancels attempts at all their points: none may leave a key.
func TestCanceledAnywhere(t *testing.T) {
	for _, hung := range []bool{false, true} {
		name := "healthy"
		if hung {
			name = "one hung"
		}
		t.Run(name, func(t *testing.T) {
			l, servers := onServers(t, 3, redlock.WithTimeout(longTTL/3))
			lockUnlock(t, l, "warm up")
			const samples = 20
			start := time.Now()
			for range samples {
				lockUnlock(t, l, "measure")
			}
			roundTrip := time.Since(start) / samples / 2
			if hung {
				servers[0].Pause()
			}
			var won, canceled int
			for range 1000 {
				ctx, cancel := context.WithCancel(t.Context())
				timer := time.AfterFunc(rand.N(3*roundTrip), cancel)
				lock, err := l.TryLock(ctx, "key")
				switch {
				case err == nil:
					won++
					mustUnlock(t, lock)
				case errors.Is(err, context.Canceled):
					canceled++
				default:
					// the hung master may make a quorum of both others necessary, never impossible
					t.Errorf("TryLock: %v, want a lock or context.Canceled", err)
				}
				timer.Stop()
				cancel()
			}
			t.Logf("round trip %v: won %d, canceled %d", roundTrip, won, canceled)
			if won == 0 || canceled == 0 {
				t.Errorf("won %d, canceled %d: the cancellations don't cover the attempt", won, canceled)
			}
			if hung {
				servers[0].Resume()
			}
			redistest.RequireNoKeys(t, servers)
		})
	}
}
