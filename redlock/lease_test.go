package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
)

func memoryLocker(t *testing.T, n int, opts ...Option) *Locker {
	t.Helper()
	names := []string{"a", "b", "c", "d", "e"}
	var masters []Master
	for _, name := range names[:n] {
		masters = append(masters, Master{newMemory(name, time.Now)})
	}
	l, err := New(masters, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// A master in memory is late only where the whole process is, as on a busy machine: that is no reason to refuse a lock.
func TestMemoryMayBeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy time.Duration
		l, err := New([]Master{{memory.New("", func() time.Time { time.Sleep(busy); return time.Now() })}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		synctest.Wait()
		busy = 4 * DefaultTimeout
		var calls sync.WaitGroup
		for i := range 3 {
			calls.Go(func() {
				if _, err := l.TryLock(context.Background(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		busy = 0
	})
}

func TestLeaseIsRenewedWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t, 3, WithTTL(2*time.Second))
		lock, err := l.Lock(context.Background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			time.Sleep(time.Second)
			if err := lock.Err(); err != nil {
				t.Fatalf("lost: %v", err)
			}
			if _, err := l.TryLock(context.Background(), "k"); !errors.Is(err, ErrHeld) {
				t.Fatalf("a second lock: %v", err)
			}
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		if lock.Fence() == 0 {
			t.Fatal("no fence")
		}
	})
}

func TestMaxHoldEndsAStuckHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memoryLocker(t, 3, WithTTL(2*time.Second), WithMaxHold(30*time.Second))
		lock, err := l.Lock(context.Background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30*time.Second - 1)
		if err := lock.Context().Err(); err != nil {
			t.Fatalf("too early: %v", err)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if cause := context.Cause(lock.Context()); !errors.Is(cause, ErrMaxHold) || !errors.Is(cause, ErrLost) {
			t.Fatalf("cause %v", cause)
		}
		next, err := l.TryLock(context.Background(), "k")
		if err != nil {
			t.Fatalf("the key is not free: %v", err)
		}
		if next.Fence() <= lock.Fence() {
			t.Fatalf("fence %d after %d", next.Fence(), lock.Fence())
		}
	})
}
