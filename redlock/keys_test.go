package redlock_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestKeys: what a process holds and waits for, by the names that the callers use.
func TestKeys(t *testing.T) {
	t.Parallel()
	l := newLocker(t, []string{"memory://"}, redlock.WithPrefix("shop"))
	began := time.Now()
	names := []string{"a:1", "a:2", "b", "}", "{}", "{{}x", "{", "a}", "a{b}c"}
	all, err := l.LockAll(t.Context(), names, redlock.WithLabel("the label"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, k := range inspect.Keys(l, "") {
		found = append(found, k.Key)
		if !k.Held || k.Label != "the label" || k.Fence != all.Fence() || k.Waiting != 0 || k.Since.Before(began) || k.Since.After(time.Now()) || k.Until.Before(all.Until()) {
			t.Errorf("held: %+v", k)
		}
	}
	want := slices.Sorted(slices.Values(names))
	if !slices.Equal(found, want) {
		t.Errorf("keys %q, want %q", found, want)
	}
	if keys := inspect.Keys(l, "a:"); len(keys) != 2 || keys[0].Key != "a:1" || keys[1].Key != "a:2" {
		t.Errorf("with the prefix a: %+v", keys)
	}
	waited := make(chan *redlock.Lock)
	go func() { waited <- mustLock(t, l, "b", redlock.WithLabel("another")) }()
	eventually(t, bound, "one waits", func() bool { return inspect.Keys(l, "b")[0].Waiting == 1 })
	if k := inspect.Keys(l, "b")[0]; !k.Held || k.Label != "the label" {
		t.Errorf("held, and waited for: %+v", k)
	}
	mustUnlock(t, all)
	second := <-waited
	keys := inspect.Keys(l, "")
	if len(keys) != 1 || keys[0].Key != "b" || keys[0].Label != "another" || !keys[0].Held || keys[0].Waiting != 0 {
		t.Errorf("after the first: %+v", keys)
	}
	mustUnlock(t, second)
	if keys := inspect.Keys(l, ""); len(keys) != 0 {
		t.Errorf("at last: %+v", keys)
	}
}

// TestKeysOfAnother: a key that another process holds is waited for here, and not held.
func TestKeysOfAnother(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 1)
	other := newLocker(t, []string{servers[0].URL()})
	held := mustLock(t, other, "key")
	waited := make(chan *redlock.Lock)
	go func() { waited <- mustLock(t, l, "key") }()
	eventually(t, bound, "one waits", func() bool { return len(inspect.Keys(l, "")) == 1 })
	if k := inspect.Keys(l, "")[0]; k.Held || k.Waiting != 1 || k.Fence != 0 || !k.Until.IsZero() || k.Since.IsZero() {
		t.Errorf("waited for: %+v", k)
	}
	mustUnlock(t, held)
	mustUnlock(t, <-waited)
}

// TestInstance: the default says where the process runs.
func TestInstance(t *testing.T) {
	t.Parallel()
	host, _ := os.Hostname()
	if name, want := inside.Of(newLocker(t, []string{"memory://"})).Instance, host+"/"+strconv.Itoa(os.Getpid()); name != want {
		t.Errorf("by default %q, want %q", name, want)
	}
	if name := inside.Of(newLocker(t, []string{"memory://"}, redlock.WithInstance("web1"))).Instance; name != "web1" {
		t.Errorf("named web1: %q", name)
	}
	for _, wrong := range []string{"", "a b", "a\n", "é", strings.Repeat("x", 65)} {
		if l, err := redlock.Open([]string{"memory://"}, redlock.WithInstance(wrong)); err == nil {
			_ = l.Close()
			t.Errorf("%q is taken for a name", wrong)
		}
	}
}

func unlockTaken(lock *redlock.Lock, err error) error {
	if err != nil {
		return err
	}
	return lock.Unlock()
}

// TestLongKeys: a key that is too long, or too many long ones, are refused by whatever takes a key, and the longest is not.
func TestLongKeys(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	ctx, longest := t.Context(), strings.Repeat("k", redlock.MaxKeyLength)
	var many []string
	for i := range 65 {
		many = append(many, fmt.Sprint(longest[2:], 10+i))
	}
	long := longest + "k"
	for door, open := range map[string]func(key string) error{
		"Lock": func(key string) error {
			lock, err := l.Lock(ctx, key)
			return unlockTaken(lock, err)
		},
		"TryLock": func(key string) error {
			lock, err := l.TryLock(ctx, key)
			return unlockTaken(lock, err)
		},
		"LockAll": func(key string) error {
			keys := many[1:]
			if key == long {
				keys = many
			}
			lock, err := l.LockAll(ctx, keys)
			return unlockTaken(lock, err)
		},
		"LockAll, at once": func(key string) error {
			lock, err := l.LockAll(ctx, []string{"a", key}, redlock.WithWait(0))
			return unlockTaken(lock, err)
		},
		"Inspect": func(key string) error {
			_, err := inspect.Key(ctx, l, key)
			return err
		},
		"Force": func(key string) error {
			if err := inspect.Force(ctx, l, key, 0, 1); !errors.Is(err, inspect.ErrFenceChanged) {
				return err
			}
			return nil
		},
		"Forget": func(key string) error {
			if _, err := inspect.Forget(ctx, l, key); !errors.Is(err, redlock.ErrNotRemembered) {
				return err
			}
			return nil
		},
	} {
		if err := open(long); !errors.Is(err, redlock.ErrKeyTooLong) {
			t.Errorf("%s of too long a key: %v", door, err)
		}
		if err := open(longest); err != nil {
			t.Errorf("%s of the longest: %v", door, err)
		}
	}
	if _, err := l.Lock(ctx, "key", redlock.WithLabel(long)); err == nil {
		t.Error("so long a label is taken")
	}
	if l, err := redlock.Open([]string{"memory://"}, redlock.WithPrefix(strings.Repeat("p", 201))); err == nil {
		_ = l.Close()
		t.Error("so long a prefix is taken")
	}
}
