package redlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// newSuccessor returns a Locker that succeeds others. Without URLs its master is one in memory, which is nobody else's.
func newSuccessor(t *testing.T, s *succession, urls []string, opts ...Option) *Locker {
	t.Helper()
	if len(urls) == 0 {
		urls = []string{"memory://"}
	}
	masters, err := Dial(urls...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := New(masters, append(opts, WithRestartGuard(0), option(func(o *options) { o.succession = s }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// requireUnused requires that no key is in use any more.
func (s *succession) requireUnused(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byKey) != 0 {
		t.Errorf("%d keys are still in use", len(s.byKey))
	}
}

// TestSuccession: a Locker doesn't give a key that another one of the process uses on masters that it doesn't share, until that has ended,
// in whatever way.
func TestSuccession(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Locker, *Lock){
		"unlocked": func(_ *Locker, k *Lock) { _ = k.Unlock() },
		"closed":   func(l *Locker, _ *Lock) { _ = l.Close() },
		"lost":     func(_ *Locker, k *Lock) { k.end(EndExpired) },
	} {
		t.Run(name, func(t *testing.T) {
			s := new(succession)
			var log bytes.Buffer // read when the Locker is closed
			former := newSuccessor(t, s, nil)
			l := newSuccessor(t, s, nil, WithPrefix("other"), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			lock, err := former.LockAll(t.Context(), []string{"a", "b"})
			if err != nil {
				t.Fatal(err)
			}
			var held *HeldError
			if _, err := l.TryLock(t.Context(), "a"); !errors.As(err, &held) {
				t.Errorf("TryLock: %v", err)
			}
			if _, err := l.Lock(t.Context(), "b", WithWait(time.Millisecond)); !errors.As(err, &held) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Lock: %v", err)
			}
			if k, err := l.TryLock(t.Context(), "c"); err != nil {
				t.Errorf("a key that nobody uses: %v", err)
			} else {
				_ = k.Unlock()
			}
			got := make(chan error, 2)
			for _, keys := range [][]string{{"a"}, {"b", "c"}} {
				go func() {
					k, err := l.LockAll(t.Context(), keys)
					if err == nil {
						if lock.Err() == nil {
							err = fmt.Errorf("%v while the former Locker holds it", keys)
						}
						err = errors.Join(err, k.Unlock())
					}
					got <- err
				}()
			}
			for l.Status().Waiting < 2 {
				time.Sleep(time.Millisecond)
			}
			end(former, lock)
			for range 2 {
				if err := <-got; err != nil {
					t.Error(err)
				}
			}
			if err := l.Close(); err != nil { // writes its log to the end
				t.Error(err)
			}
			if n := strings.Count(log.String(), "former masters"); n != 1 {
				t.Errorf("%d lines in the log, want 1:\n%s", n, &log)
			}
			s.requireUnused(t)
		})
	}
}

// TestSuccessionOnSameMasters: Lockers whose masters keep them apart don't wait for each other, and so may have different slots of one key.
func TestSuccessionOnSameMasters(t *testing.T) {
	t.Parallel()
	urls := redistest.URLs(redistest.Start(t, 4))
	s := new(succession)
	first := newSuccessor(t, s, urls[:3])
	second := newSuccessor(t, s, urls[:3], WithTimeout(time.Second))
	var held []*Lock
	for _, l := range []*Locker{first, second} {
		k, err := l.Lock(t.Context(), "a", WithConcurrency(2))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, k)
	}
	for _, k := range held {
		_ = k.Unlock()
	}
	_ = second.Close()
	for name, c := range map[string]struct {
		urls  []string
		opts  []Option
		meets bool
	}{
		"other settings":        {urls[:3], []Option{WithTimeout(time.Second)}, true},
		"a server more":         {urls, nil, true},
		"another prefix":        {urls[:3], []Option{WithPrefix("other")}, false},
		"no majority in common": {urls[2:], nil, false},
		"another database":      {[]string{urls[0] + "/1", urls[1] + "/1", urls[2] + "/1"}, nil, false},
		"memory":                {nil, nil, false},
	} {
		second := newSuccessor(t, s, c.urls, c.opts...)
		if first.meets(second) != c.meets || second.meets(first) != c.meets {
			t.Errorf("%s: want %v", name, c.meets)
		}
		_ = second.Close()
	}
}

// TestSuccessionUnderLoad: calls of three Lockers want the same keys, some of them give up, and no two hold one at once.
func TestSuccessionUnderLoad(t *testing.T) {
	t.Parallel()
	s := new(succession)
	var holding [4]atomic.Int32
	var callers sync.WaitGroup
	var got atomic.Int32
	for range 3 {
		l := newSuccessor(t, s, nil)
		for range 8 {
			callers.Go(func() {
				for range 50 {
					keys := []string{fmt.Sprint(rand.IntN(len(holding)))}
					if rand.IntN(3) == 0 {
						keys = append(keys, fmt.Sprint(rand.IntN(len(holding))))
					}
					keys = distinctKeys(keys)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20))*time.Millisecond)
					lock, err := l.LockAll(ctx, keys)
					cancel()
					if err != nil {
						continue
					}
					got.Add(1)
					for _, key := range keys {
						if holding[key[0]-'0'].Add(1) > 1 {
							t.Errorf("two hold %s", key)
						}
					}
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					for _, key := range keys {
						holding[key[0]-'0'].Add(-1)
					}
					if err := lock.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	callers.Wait()
	if got.Load() == 0 {
		t.Error("no call has got its lock")
	}
	s.requireUnused(t)
}
