package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// tryLock gives the lock, or nil.
func tryLock(t testing.TB, l *redlock.Locker, key string) *redlock.Lock {
	t.Helper()
	lock, err := l.TryLock(t.Context(), key)
	if err != nil && !errors.Is(err, redlock.ErrHeld) && !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatalf("TryLock: %v", err)
	}
	return lock
}

// commands is how many of our commands the server has got.
func commands(s *redistest.Server) int {
	return s.Calls("evalsha") + s.Calls("eval") + s.Calls("lrem")
}

// steal gives the key on the server to another, whoever has it.
func steal(t testing.TB, s *redistest.Server, key string, ttl time.Duration) {
	t.Helper()
	_, err := s.Client().TxPipelined(context.Background(), func(tx redis.Pipeliner) error {
		tx.Del(context.Background(), redisKey(key))
		tx.RPush(context.Background(), redisKey(key), "another")
		return tx.PExpire(context.Background(), redisKey(key), ttl).Err()
	})
	if err != nil {
		t.Error(err)
	}
}

func command(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// lockEverywhere takes a lock and waits until all servers have it, so that the Locker has reached each of them. A
// server that it reaches for the first time after a move would not be one that has changed.
func lockEverywhere(t *testing.T, l *redlock.Locker, servers []*redistest.Server) *redlock.Lock {
	t.Helper()
	lock := mustLock(t, l, "key")
	for _, s := range servers {
		eventually(t, bound, "the lock is on "+s.Addr(), func() bool {
			if lock.Err() != nil { // its lease is short, and the machine busy
				lock = mustLock(t, l, "key")
			}
			return s.Client().Exists(t.Context(), "redlock:{key}").Val() == 1
		})
	}
	return lock
}

func redisKey(key string) string { return "redlock:{" + key + "}" }

// waitForUptime waits until the servers say that they run for so long. Processes have known them ever since.
func waitForUptime(t testing.TB, servers []*redistest.Server, uptime time.Duration) {
	t.Helper()
	for _, s := range servers {
		if err := s.Client().HSet(t.Context(), "redlock:processes:{processes}", "born", 1).Err(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, uptime+bound, fmt.Sprintf("servers up for %v", uptime), func() bool {
		for _, s := range servers {
			info, err := s.Client().Info(t.Context(), "server").Result()
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(info, "uptime_in_seconds:")
			seconds, _, _ := strings.Cut(rest, "\r")
			if n, err := strconv.Atoi(seconds); err != nil || time.Duration(n)*time.Second < uptime {
				return false
			}
		}
		return true
	})
}

// event is what an Observer was told.
type event struct {
	kind   string // "renewed", "lost", "down" or "up"
	master string
	err    error
	at     time.Time
}

// diary is an Observer that remembers.
type diary struct {
	mu     sync.Mutex
	events []event
}

func (d *diary) note(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.at = time.Now()
	d.events = append(d.events, e)
}

// option has a Locker tell the diary.
func (d *diary) option() redlock.Option {
	return redlock.WithObserver(redlock.Observer{
		LeaseLost:  func(err error) { d.note(event{kind: "lost", err: err}) },
		Renewed:    func(err error) { d.note(event{kind: "renewed", err: err}) },
		MasterDown: func(m redlock.MasterStatus) { d.note(event{kind: "down", master: m.Name, err: m.Err}) },
		MasterUp:   func(master string) { d.note(event{kind: "up", master: master}) },
	})
}

// expect waits for such an event.
func (d *diary) expect(t testing.TB, kind, master string, err error) {
	t.Helper()
	eventually(t, bound, fmt.Sprintf("the observer is told that %s is %s: %v", master, kind, err), func() bool { return len(d.find(kind, master, err)) > 0 })
}

// upAfter returns when a master was first said to be up after it was said to be down for this reason. A busy machine has others.
func (d *diary) upAfter(master string, reason error) (at time.Time) {
	down := d.find("down", master, reason)
	for _, e := range d.find("up", master, nil) {
		if len(down) > 0 && at.IsZero() && e.at.After(down[0].at) {
			at = e.at
		}
	}
	return at
}

// find gives the events of a kind, of one master or all (""), and with this error if it isn't nil.
func (d *diary) find(kind, master string, err error) (found []event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.kind == kind && (master == "" || e.master == master) && (err == nil || errors.Is(e.err, err)) {
			found = append(found, e)
		}
	}
	return found
}
