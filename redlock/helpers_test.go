package redlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the log of Lockers without their own
	goleak.VerifyTestMain(m)
}

// bound is for what should happen at once, on a machine that is busy with other tests.
const bound = 2 * time.Minute

// longTTL is that of locks which must not be seen to go away by expiry.
const longTTL = 30 * time.Second

// dial gives masters without a Locker.
func dial(urls ...string) ([]redlock.Master, error) {
	masters, err := inside.Dial(func() inside.Access { return inside.Access{} }, urls...)
	return masters.([]redlock.Master), err
}

func memoryMaster(name string) redlock.Master {
	return inside.NewMemoryMaster(name).(redlock.Master)
}

// newLocker gives a Locker on the masters with these URLs, closed with the test. Its masters may
// be slow, as on a busy machine, unless the options say otherwise.
func newLocker(t testing.TB, urls []string, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(urls, patient(opts)...)
	return closedWith(t, l, err)
}

func lockerOn(t testing.TB, masters []redlock.Master, opts ...redlock.Option) *redlock.Locker {
	t.Helper()
	l, err := redlock.New(masters, patient(opts)...)
	return closedWith(t, l, err)
}

func patient(opts []redlock.Option) []redlock.Option {
	return append([]redlock.Option{redlock.WithTimeout(time.Second), redlock.WithMaxTTL(longTTL), redlock.WithTTL(longTTL), redlock.WithRestartGuard(0)}, opts...)
}

func closedWith(t testing.TB, l *redlock.Locker, err error) *redlock.Locker {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func withRequest(r *inspect.Request) redlock.LockOption {
	return inside.WithRequest((*inside.Request)(r)).(redlock.LockOption)
}

// onServers gives n real masters and a Locker on them.
func onServers(t testing.TB, n int, opts ...redlock.Option) (*redlock.Locker, []*redistest.Server) {
	t.Helper()
	servers := redistest.Start(t, n)
	return newLocker(t, redistest.URLs(servers), opts...), servers
}

func mustLock(t testing.TB, l *redlock.Locker, key string, opts ...redlock.LockOption) *redlock.Lock {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(bound, cancel).Stop()
	lock, err := l.Lock(ctx, key, opts...)
	if err != nil {
		t.Fatalf("lock %q: %v", key, err)
	}
	return lock
}

// mustUnlock ends a lock that is held. On a busy machine a quorum may not confirm that in time: then the release is repeated.
func mustUnlock(t testing.TB, lock *redlock.Lock) {
	t.Helper()
	err := lock.Unlock()
	if errors.Is(err, redlock.ErrNoQuorum) {
		t.Logf("unlock: %v", err)
	} else if err != nil {
		t.Fatalf("unlock: %v", err)
	}
}

// unlockWith leaves a result, and reports whether a quorum has confirmed it. On a busy machine it may not in time; the masters remember a
// short one all the same.
func unlockWith(t testing.TB, lock *redlock.Lock, result []byte, keep time.Duration) (confirmed bool) {
	t.Helper()
	err := lock.UnlockWith(result, keep)
	if err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatalf("unlock with a result: %v", err)
	}
	return err == nil
}

// mustClose closes a Locker before the test's end. Logger and observer were told of all that has happened when it returns.
func mustClose(t testing.TB, l *redlock.Locker) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

// lockUnlock is a turn without work. A lease may be over before its end on a busy machine, and masters' replies may come too late for it:
// then it has another.
func lockUnlock(t testing.TB, l *redlock.Locker, key string) {
	t.Helper()
	eventually(t, bound, "a turn", func() bool { return unlocked(t, mustLock(t, l, key)) })
}

// unlocked ends a lock, and reports whether it was held until then.
func unlocked(t testing.TB, lock *redlock.Lock) bool {
	t.Helper()
	err := lock.Unlock()
	if err != nil && !errors.Is(err, redlock.ErrNoQuorum) && time.Now().Before(lock.Until()) {
		t.Fatalf("unlock: %v", err)
	}
	return err == nil
}

// answered asks until a quorum answers in time, which on a busy machine it may not.
func answered(t testing.TB, ask func() error) (err error) {
	t.Helper()
	eventually(t, bound, "a quorum answers", func() bool { err = ask(); return !errors.Is(err, redlock.ErrNoQuorum) })
	return err
}

// eventually fails the test unless the condition holds within the limit.
func eventually(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// within receives what should come at once.
func within[T any](t testing.TB, from <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-from:
	case <-time.After(bound):
		t.Fatalf("nothing has come within %v", bound)
	}
	return got
}

// ended waits for the end of a context and gives its cause.
func ended(t testing.TB, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(bound):
		t.Fatal("context hasn't ended")
	}
	return context.Cause(ctx)
}

// logBook keeps what is logged.
type logBook struct{ redistest.Log }

// option makes a Locker log into the book.
func (b *logBook) option() redlock.Option {
	return redlock.WithLogger(slog.New(slog.NewTextHandler(b, nil)))
}

// lines are the log's lines that hold all these words.
func (b *logBook) lines(words ...string) (found []string) {
lines:
	for line := range strings.Lines(b.String()) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// expect waits for a line with all these words.
func (b *logBook) expect(t testing.TB, words ...string) {
	t.Helper()
	eventually(t, bound, "log line with "+strings.Join(words, ", "), func() bool { return len(b.lines(words...)) > 0 })
}
