package redlock_test

import (
	"context"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/limits"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestLimits: no option is accepted beyond its limit, by New or by a call.
func TestLimits(t *testing.T) {
	durations := map[string]func(time.Duration) redlock.Option{
		"max ttl": redlock.WithMaxTTL, "max skew": redlock.WithMaxSkew, "restart guard": redlock.WithRestartGuard, "timeout": redlock.WithTimeout,
	}
	ofLocks := map[string]func(time.Duration) redlock.LockOption{
		"ttl": redlock.WithTTL, "wait": redlock.WithWait, "masters wait": redlock.WithMastersWait, "max hold": redlock.WithMaxHold, "once per": redlock.WithOncePer,
	}
	numbers := map[string]func(int) redlock.LockOption{"concurrency": func(n int) redlock.LockOption { return redlock.WithConcurrency(n) }, "max waiters": redlock.WithMaxWaiters}
	texts := map[string]func(string) redlock.Option{"prefix": redlock.WithPrefix, "instance": redlock.WithInstance}
	l, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, l)
	called := func(opt redlock.LockOption) error { return freed(l.TryLock(t.Context(), "a", opt)) }
	limits.TestKeys(t, func(keys ...string) error { return second(l.LockAll(t.Context(), keys, redlock.WithWait(0))) })
	limits.Test(t, limits.With("", " "), func(option, value string) error {
		if number := numbers[option]; number != nil {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			if err := inside.CheckOptions([]redlock.Option{number(n)}); err == nil {
				t.Errorf("%s %s is accepted as a default", option, value)
			}
			return called(number(n))
		}
		if text := texts[option]; text != nil {
			return inside.CheckOptions([]redlock.Option{text(value)})
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			t.Fatal(err)
		}
		if lock := ofLocks[option]; lock != nil {
			return called(lock(d))
		}
		return inside.CheckOptions([]redlock.Option{durations[option](d)})
	}, "max ttl", "max skew", "restart guard", "timeout", "ttl", "wait", "masters wait", "max hold", "once per", "concurrency", "max waiters", "prefix", "instance")
	if err := called(redlock.WithConcurrency(math.MaxInt)); err == nil || !strings.Contains(err.Error(), strconv.Itoa(math.MaxInt)) {
		t.Error(err)
	}
	for _, opts := range [][]redlock.Option{
		{redlock.WithWait(math.MaxInt64)}, {redlock.WithMaxHold(math.MaxInt64)}, {redlock.WithMaxWaiters(math.MaxInt)},
		{redlock.WithMaxTTL(366 * 24 * time.Hour)}, {redlock.WithTimeout(5 * time.Second)}, {redlock.WithConcurrency(redlock.MaxConcurrency)},
	} {
		if err := inside.CheckOptions(opts); err != nil {
			t.Error(err)
		}
	}
}

// TestNeverMade: what nobody has made is an error or a panic with a sentence.
func TestNeverMade(t *testing.T) {
	l, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, l)
	ctx := t.Context()
	var none context.Context
	var noLocker *redlock.Locker
	var noLock *redlock.Lock
	work := func(context.Context, *redlock.Lock) error { return nil }
	for what, call := range map[string]func() error{
		"the context is nil":  func() error { return second(l.Lock(none, "a")) },
		"context is nil":      func() error { return second(l.LockAll(none, []string{"a", "b"}, redlock.WithWait(0))) },
		"is nil: use":         func() error { return l.Do(none, "a", work) },
		"nil: use context":    func() error { _, err := inspect.Key(none, l, "a"); return err },
		"nil: use context.B":  func() error { return inspect.Force(none, l, "a", 0, 1) },
		"option 1 of the":     func() error { return second(l.Lock(ctx, "a", nil)) },
		"option 2 of the":     func() error { return second(l.Lock(ctx, "a", redlock.WithWait(0), nil)) },
		"option 1 of":         func() error { _, err := redlock.Open([]string{"memory://"}, nil); return err },
		"the Locker is nil":   func() error { return second(new(redlock.Locker).TryLock(ctx, "a")) },
		"Locker is nil":       func() error { return second(noLocker.Lock(ctx, "a")) },
		"Locker is nil, or":   func() error { return noLocker.Close() },
		"is nil, or none":     func() error { _, err := inspect.Processes(ctx, new(redlock.Locker)); return err },
		"no key was given":    func() error { return second(l.LockAll(ctx, nil)) },
		"key is empty":        func() error { return second(l.LockAll(ctx, []string{"a", ""})) },
		"master 1 is empty":   func() error { _, err := redlock.New([]redlock.Master{{}}); return err },
		"the Lock is nil":     func() error { return new(redlock.Lock).Unlock() },
		"Lock is nil, or was": func() error { return noLock.UnlockDone() },
		"Lock is nil":         func() error { return noLock.UnlockWith(nil, time.Minute) },
		"the Lock is nil, or": func() error { noLock.Fence(); return nil },
		"was not returned":    func() error { new(redlock.Lock).Context(); return nil },
		"not returned by":     func() error { _ = new(redlock.Lock).Err(); return nil },
	} {
		if text := saidBy(call); !strings.Contains(text, what) || !strings.HasPrefix(text, "redlock: ") {
			t.Errorf("%q, want %q", text, what)
		}
	}
	lockUnlock(t, l, "a") // nothing is left
}

// saidBy returns the text of the error or the panic of a call.
func saidBy(call func() error) (text string) {
	defer func() {
		if err, ok := recover().(error); ok {
			text = err.Error()
		}
	}()
	if err := call(); err != nil {
		return err.Error()
	}
	return ""
}
