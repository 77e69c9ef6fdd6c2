package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestErrorTexts: errors name the label of a lock, and not its key, and say once that they are of this package.
func TestErrorTexts(t *testing.T) {
	const key, label = "the secret key", "the label"
	with := func(opts ...redlock.LockOption) []redlock.LockOption {
		return append(opts, redlock.WithLabel(label))
	}
	require := func(what string, err error, parts ...string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", what)
			return
		}
		text := err.Error()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q doesn't say %q", what, text, part)
			}
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, key) || strings.Count(line, "redlock: ") > 1 {
				t.Errorf("%s: %q", what, line)
			}
		}
	}
	ctx, moment := t.Context(), redlock.WithWait(20*time.Millisecond)
	l := newLocker(t, []string{"memory://"})
	held := mustLock(t, l, key)
	require("a held one", freed(l.TryLock(ctx, key, with()...)), label)
	require("a wait", freed(l.Lock(ctx, key, with(moment)...)), label, "deadline")
	require("its own", freed(l.Lock(held.Context(), key, with()...)), label, "itself")
	require("several", freed(l.LockAll(ctx, []string{key, "b"}, with(moment)...)), label)
	require("slots", freed(l.Lock(ctx, key, with(moment, redlock.WithConcurrency(1))...)), label)
	waiting, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _, _ = l.Lock(waiting, key) }()
	eventually(t, bound, "a call waits", func() bool { return l.Status().Waiting > 0 })
	require("many waiters", freed(l.Lock(ctx, key, with(redlock.WithMaxWaiters(1))...)), label, "too many")
	stop()
	<-done
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	require("a context that has ended", freed(l.Lock(canceled, key, with()...)))
	require("a result that is too long", held.UnlockWith(make([]byte, redlock.MaxResult+1), time.Minute))
	require("a long key", freed(l.Lock(ctx, strings.Repeat(key, redlock.MaxKeyLength), with()...)))
	require("a TTL", freed(l.Lock(ctx, key, redlock.WithTTL(time.Hour))))
	_, err := l.Once(ctx, key, time.Minute, func(ctx context.Context, lock *redlock.Lock) ([]byte, error) {
		<-ctx.Done()
		return nil, nil
	}, with(redlock.WithMaxHold(time.Millisecond))...)
	require("Once that was lost", err)
	require("Do that was lost", l.Do(ctx, key, func(ctx context.Context, _ *redlock.Lock) error {
		<-ctx.Done()
		return errors.Join(errors.New("the work"), context.Cause(ctx))
	}, with(redlock.WithMaxHold(time.Millisecond))...))
	require("release by force", inspect.Force(ctx, l, key, 0, 1))
	_, err = inspect.Forget(ctx, l, key)
	require("forget", err)
	mustClose(t, l)
	require("a Locker that is closed", freed(l.Lock(ctx, key, with()...)))

	dead := newLocker(t, []string{"redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"})
	require("dead masters", freed(dead.TryLock(ctx, key, with()...)), label)
	_, err = inspect.Key(ctx, dead, key)
	require("Inspect on dead masters", err)
	young := lockerOn(t, dialAll(t, redistest.URLs(redistest.Start(t, 1))), redlock.WithRestartGuard(longTTL+time.Second))
	require("masters that have restarted", freed(young.Lock(ctx, key, with(redlock.WithWait(5*time.Second))...)), label, "just started")
}

func dialAll(t *testing.T, urls []string) []redlock.Master {
	t.Helper()
	masters, err := dial(urls...)
	if err != nil {
		t.Fatal(err)
	}
	return masters
}
