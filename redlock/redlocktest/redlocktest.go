// Package redlocktest tests code that locks, without a server: in real time, or in the virtual time of testing/synctest.
//
//	locker := redlocktest.New(t) // for the code that is tested
//
// To see what the code does if it can't have the lock, or loses it:
//
//   - Another holder: take the key in the test, with TryLock on the same Locker.
//   - The lock is lost: [Lose], while the code works.
//   - No master answers: [Master.SetAvailable].
//   - Another process: a second Locker of one [Master].
//   - The process ends: Close the Locker.
//
// Each Locker is closed at the end of its test, before what was set up earlier with t.Cleanup ends. The contexts of locks that are still held end
// then, with redlock.ErrClosed. No goroutine is left. In a bubble of testing/synctest, make the Master in the bubble, too.
package redlocktest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
)

// New returns a Locker on a master of its own. It has no log, unless the options name one, and is closed at the end of the test, if it isn't by then.
func New(t testing.TB, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	return new(Master).Locker(t, opts...)
}

// Lose has the Locker lose its lock on the key at once, as if its lease had ended: the contexts of the lock end with redlock.ErrLost, and the next
// holder may have the key, although the former one still works. If the key may have several holders, all those of this Locker lose their locks. The
// test fails if there is no lock to lose.
func Lose(t testing.TB, l *redlock.Locker, key string) {
	t.Helper()
	inside, err := hook.InsideOf(context.Background(), l)
	if err != nil {
		t.Errorf("lose the lock on %q: %v", key, err)
	} else if !inside.Lose(key) {
		t.Errorf("lose the lock on %q: this Locker doesn't hold it", key)
	}
}

// Master is a master in memory. Several Lockers may have it, as processes have a server. It is available until SetAvailable says otherwise. The zero
// value is ready; don't copy it.
type Master struct {
	mu     sync.Mutex
	memory *memory.Master
	away   bool
	ways   map[*redlock.Locker]*way
}

// Locker is New for another Locker on this master.
func (m *Master) Locker(t testing.TB, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.memory == nil {
		m.memory, m.ways = memory.New("", memory.Steady(time.Now)), make(map[*redlock.Locker]*way)
	}
	w := newWay(m.memory, !m.away)
	l, err := redlock.New([]redlock.Master{hook.MasterOf(w).(redlock.Master)}, append([]redlock.Option{redlock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	m.ways[l] = w
	t.Cleanup(func() {
		w.set(true) // Close would wait for a master that has to learn of a release
		if err := l.Close(); err != nil {
			t.Errorf("close the Locker: %v", err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.ways, l)
	})
	return l
}

// SetAvailable says whether the master can be reached, and waits until its Lockers have noticed that, which takes up to a second after an absence.
// While the master is away, calls fail with redlock.ErrNoQuorum or wait for it, and locks are lost at the end of their TTL. It forgets nothing. Don't
// close a Locker that has locks meanwhile: that waits for the master for up to 20 s.
func (m *Master) SetAvailable(available bool) {
	m.mu.Lock()
	m.away = !available
	ways := maps.Clone(m.ways)
	for _, w := range ways {
		w.set(available)
	}
	m.mu.Unlock()
	for l, w := range ways {
		for w.open().Err() == nil == available {
			if status := l.Status(); status.Ready() == available || errors.Is(status.Err, redlock.ErrClosed) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
}
