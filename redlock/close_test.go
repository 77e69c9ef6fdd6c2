package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// closingLocker returns a Locker that the test closes itself.
func closingLocker(t *testing.T, servers []*redistest.Server) *redlock.Locker {
	t.Helper()
	l, err := redlock.Open(redistest.URLs(servers), redlock.WithTimeout(longTTL/3), redlock.WithMaxTTL(longTTL), redlock.WithTTL(longTTL), redlock.WithRestartGuard(0))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rounds is how often a test tries to find a wrong moment: fewer times with -short. It isn't redistest.Few, because the race detector
// finds more.
func rounds(all int) int {
	if testing.Short() {
		return all / 5
	}
	return all
}

// TestWonBesideClose: no lock outlives the Locker, at whatever moment it was won or unlocked and, if all masters
// answer, its key is free when Close returns.
func TestWonBesideClose(t *testing.T) {
	t.Parallel()
	three, one := redistest.Start(t, 3), redistest.Start(t, 1)
	for round := range rounds(30) {
		servers, callers := three, 16
		if round%3 == 0 { // a caller that is alone, with one master, reads its replies itself
			servers, callers = one, 1
		}
		l := closingLocker(t, servers)
		var calls sync.WaitGroup
		var mu sync.Mutex
		var won []*redlock.Lock
		for i := range callers {
			calls.Go(func() {
				for n := 0; ; n++ {
					keys := []string{fmt.Sprint(i, " ", n), fmt.Sprint(i, " ", n, " too")}[:1+i%2]
					lock, err := l.LockAll(context.Background(), keys)
					if err != nil {
						if !errors.Is(err, redlock.ErrClosed) {
							t.Errorf("lock: %v, want ErrClosed", err)
						}
						return
					}
					mu.Lock()
					won = append(won, lock)
					mu.Unlock()
					if n%2 == 0 {
						_ = lock.Unlock()
					}
				}
			})
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range servers {
			if keys := s.Keys(); len(keys) > 0 {
				t.Fatalf("round %d: %s still holds %d keys when Close has returned", round, s.Addr(), len(keys))
			}
		}
		calls.Wait()
		for _, lock := range won {
			if lock.Context().Err() == nil {
				t.Fatalf("round %d: a lock goes on when its Locker is closed", round)
			}
		}
	}
}

// TestUnlockBesideClose: Close waits for the calls of Unlock that have begun, and frees the locks of those
// that come later.
func TestUnlockBesideClose(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	for round := range rounds(20) {
		l := closingLocker(t, servers)
		var locks []*redlock.Lock
		for i := range 100 {
			locks = append(locks, mustLock(t, l, fmt.Sprint(i)))
		}
		var calls sync.WaitGroup
		for i, lock := range locks {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * 3 * time.Microsecond)
				if err := lock.Unlock(); err != nil && !errors.Is(err, redlock.ErrExpired) {
					t.Errorf("unlock: %v, want nil, or ErrExpired where Close was first", err)
				}
			})
		}
		time.Sleep(rand.N(300 * time.Microsecond))
		var closes sync.WaitGroup
		for range 2 { // each call returns when it is done
			closes.Go(func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				for _, s := range servers {
					if keys := s.Keys(); len(keys) > 0 {
						t.Errorf("round %d: %s still holds %d keys when Close has returned", round, s.Addr(), len(keys))
					}
				}
			})
		}
		closes.Wait()
		calls.Wait()
		if t.Failed() {
			return
		}
	}
}

// TestCompleteWhenSeen: a lock is complete as soon as other goroutines can see it, although the call that took it
// is still running. The race detector tells.
func TestCompleteWhenSeen(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	stop := make(chan struct{})
	var tries sync.WaitGroup
	for range 4 {
		tries.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if lock := tryLock(t, l, "a"); lock != nil {
					mustUnlock(t, lock)
				}
			}
		})
	}
	for range 60 {
		lock, err := l.LockAll(t.Context(), []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, lock)
	}
	close(stop)
	tries.Wait()
}
