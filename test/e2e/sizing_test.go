package e2e

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSizing measures what docs/operations.md says about sizing: go test -v -run TestSizing ./e2e
func TestSizing(t *testing.T) {
	needTime(t)
	t.Parallel()
	const locks, turns = 50, 500
	servers := redistest.Start(t, 3)
	s := servers[0]
	first := neverLocker(t, servers)
	key := func(i int) string { return fmt.Sprintf("order:%08d", i) } // 14 bytes
	held := make([]*redlock.Lock, locks)
	for i := range held {
		var err error
		if held[i], err = first.Lock(t.Context(), key(i)); err != nil {
			t.Fatal(err)
		}
	}
	requireConnections(t, servers, 1)
	perKey := usage(t, s, key(0))

	second := neverLocker(t, servers)
	requireConnections(t, servers, 2)
	var waiting sync.WaitGroup
	for i := range locks {
		waiting.Go(func() {
			lock, err := second.Lock(t.Context(), key(i))
			if err != nil {
				t.Error(err)
				return
			}
			requireUnlock(t, lock)
		})
	}
	queued := -1 // not every call leaves a ticket on each master: those of a majority suffice
	eventually(t, "the second process waits for all keys", func() bool {
		for i := range locks {
			if queued = i; s.Client().ZCard(t.Context(), "redlock:{"+key(i)+"}:queue").Val() == 1 {
				return second.Status().Waiting == locks
			}
		}
		return false
	})
	requireConnections(t, servers, 3) // the second process hears of releases on another connection
	perWaiter := usage(t, s, key(queued)) - perKey
	for _, lock := range held {
		requireUnlock(t, lock)
	}
	waiting.Wait()

	cpu := cpuTime(t, s)
	for i := range turns {
		lock, err := first.Lock(t.Context(), key(i))
		if err != nil {
			t.Fatal(err)
		}
		requireUnlock(t, lock)
	}
	ofLocks := cpuTime(t, s) - cpu
	cpu = cpuTime(t, s)
	for i := range turns {
		if err := s.Client().Set(t.Context(), key(i), "0123456789", never).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ofSets := cpuTime(t, s) - cpu
	t.Logf("on each master: %.0f bytes for a key that is held, with its fence; %.0f bytes more for each process that waits for it;"+
		" a lock and its release take as much CPU as %.1f times SET", perKey, perWaiter, ofLocks/ofSets)

	// As in the document; allocators and versions differ.
	for what, is := range map[string]struct{ value, documented float64 }{
		"bytes of a key":    {perKey, keyBytes},
		"bytes of a waiter": {perWaiter, waiterBytes},
	} {
		if is.value < is.documented/2 || is.value > 2*is.documented {
			t.Errorf("%s: %.1f, and docs/operations.md says %v", what, is.value, is.documented)
		}
	}
}

// These are in docs/operations.md.
const (
	keyBytes    = 200
	waiterBytes = 290
)

// usage returns how many bytes a key takes on a server.
func usage(t *testing.T, s *redistest.Server, key string) (bytes float64) {
	t.Helper()
	for _, suffix := range []string{"", ":fence", ":queue", ":leases"} {
		n, err := s.Client().MemoryUsage(t.Context(), "redlock:{"+key+"}"+suffix).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		bytes += float64(n)
	}
	return bytes
}

func requireUnlock(t *testing.T, lock *redlock.Lock) {
	t.Helper()
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}

// info returns a number in a section of INFO.
func info(t *testing.T, s *redistest.Server, section, field string) (value float64) {
	t.Helper()
	text, err := s.Client().Info(t.Context(), section).Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(text, field)
	if _, err := fmt.Sscan(rest, &value); !found || err != nil {
		t.Fatalf("INFO %s has no number for %s: %v", section, field, err)
	}
	return value
}

func cpuTime(t *testing.T, s *redistest.Server) float64 {
	t.Helper()
	return info(t, s, "cpu", "used_cpu_sys:") + info(t, s, "cpu", "used_cpu_user:")
}
