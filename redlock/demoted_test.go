package redlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestDemotedServers: two of three masters become replicas of an empty server and are promoted again, while all
// connections to them stay. They are the same runs, but have lost the locks that they granted.
func TestDemotedServers(t *testing.T) {
	t.Parallel()
	const ttl = 3 * movedTTL // longer than all this takes
	for name, guard := range map[string]time.Duration{"guard": ttl + time.Second, "no guard": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d, holders diary
			servers := redistest.Start(t, 4, "--repl-diskless-sync-delay", "0")
			waitForUptime(t, servers, ttl+time.Second)
			urls := redistest.URLs(servers[:3])
			others := newLocker(t, urls, append(movable(&d, guard), redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl))...)
			unlocked(t, lockEverywhere(t, others, servers[:3]))
			_, port, _ := strings.Cut(servers[3].Addr(), ":")
			lock := lockEverywhere(t, newLocker(t, urls, append(movable(&holders, guard), redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl))...), servers[:3])
			for _, s := range servers[:2] {
				command(t, s, "REPLICAOF", "127.0.0.1", port)
			}
			for i, s := range servers[:2] {
				eventually(t, bound, "the replica has what its master has: nothing", func() bool {
					return strings.Contains(s.Client().Info(t.Context(), "replication").Val(), "master_link_status:up") && len(s.Keys()) == 0
				})
				eventually(t, bound, "that is noticed", func() bool {
					_ = tryLock(t, others, "another")
					return len(d.find("down", urls[i], nil)) > 0
				})
			}
			for _, s := range servers[:2] {
				command(t, s, "REPLICAOF", "NO", "ONE")
			}
			requireExclusion(t, others, lock)
			for _, url := range urls[:2] {
				d.expect(t, "down", url, redlock.ErrReplaced)
			}
		})
	}
}

// TestFlushedServers: two of three masters lose their data. A process notices that with its next beat.
func TestFlushedServers(t *testing.T) {
	t.Parallel()
	const ttl = 3 * movedTTL
	var d, holders diary
	servers := redistest.Start(t, 3)
	waitForUptime(t, servers, ttl+time.Second)
	urls := redistest.URLs(servers)
	others := newLocker(t, urls, append(movable(&d, ttl+time.Second), redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl))...)
	unlocked(t, lockEverywhere(t, others, servers))
	lock := lockEverywhere(t, newLocker(t, urls, append(movable(&holders, ttl+time.Second), redlock.WithTTL(ttl), redlock.WithMaxTTL(ttl))...), servers)
	for _, s := range servers[:2] {
		command(t, s, "FLUSHALL")
	}
	for _, url := range urls[:2] {
		eventually(t, bound, "that is noticed", func() bool { return len(d.find("down", url, redlock.ErrReplaced)) > 0 })
	}
	requireExclusion(t, others, lock)
}

// requireExclusion has another Locker try to take a lock until the holder's keys are back on the masters, or its
// lease has ended.
func requireExclusion(t *testing.T, others *redlock.Locker, lock *redlock.Lock) {
	t.Helper()
	unlocked := false
	eventually(t, 3*bound, "the lock is free again", func() bool {
		valid := lock.Err() == nil // before the other asks
		second, err := others.TryLock(t.Context(), "key")
		switch {
		case errors.Is(err, redlock.ErrHeld) && !unlocked: // by the first, on the masters that vote again
			unlocked = true
			_ = lock.Unlock() // it may have been lost
		case err == nil && !unlocked && valid && time.Now().Before(lock.Until()):
			t.Fatalf("a second holder, the first is valid for %v", time.Until(lock.Until()))
		case err == nil:
			_ = second.Unlock() // likewise
		}
		return err == nil
	})
}

func command(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}
