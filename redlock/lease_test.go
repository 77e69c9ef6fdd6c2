package redlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func memoryLocker(t *testing.T, n int, opts ...Option) *Locker {
	t.Helper()
	names := []string{"a", "b", "c", "d", "e"}
	var masters []Master
	for _, name := range names[:n] {
		masters = append(masters, NewMemoryMaster(name))
	}
	l, err := New(masters, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
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
		start := time.Now()
		lock, err := l.Lock(context.Background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		<-lock.Context().Done()
		if cause := context.Cause(lock.Context()); !errors.Is(cause, ErrMaxHold) || !errors.Is(cause, ErrLost) {
			t.Fatalf("cause %v", cause)
		}
		if held := time.Since(start); held != 30*time.Second {
			t.Fatalf("held for %v", held)
		}
		synctest.Wait() // the context ends before the release
		next, err := l.TryLock(context.Background(), "k")
		if err != nil {
			t.Fatalf("the key is not free: %v", err)
		}
		if next.Fence() <= lock.Fence() {
			t.Fatalf("fence %d after %d", next.Fence(), lock.Fence())
		}
	})
}
