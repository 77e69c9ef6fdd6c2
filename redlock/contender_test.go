package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// requireOutOfReach requires that calls that may wait for long fail soon, because there is no quorum.
func requireOutOfReach(t *testing.T, l *redlock.Locker) (failure *redlock.QuorumError) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	errs := make(chan error)
	const calls = 20 // in one line
	for range calls {
		go func() {
			_, err := l.Lock(ctx, "key")
			errs <- err
		}()
	}
	limit := time.After(bound)
	for range calls {
		select {
		case err := <-errs:
			if !errors.As(err, &failure) || errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("error %v, want a *QuorumError before the deadline", err)
			}
		case <-limit:
			t.Fatal("a call waits for a quorum that can't come")
		}
	}
	return failure
}

// TestWaitForGuards: a guard that ends within the wait is waited for, one that ends later isn't.
func TestWaitForGuards(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const maxTTL = time.Second
		for _, s := range net.Servers {
			s.Reboot()
		}
		long := simLocker(t, net.Masters(), redlock.WithRestartGuard(time.Hour))
		if failure := requireOutOfReach(t, long); failure.RetryAfter < time.Minute {
			t.Errorf("retry after %v, want the rest of an hour", failure.RetryAfter)
		}
		short := simLocker(t, net.Masters(), redlock.WithTTL(maxTTL), redlock.WithMaxTTL(maxTTL),
			redlock.WithRestartGuard(maxTTL+3*time.Second))
		lockUnlock(t, short, "key")
	})
}

// TestObserverPanics: an Observer that panics ends neither the process nor a lock.
func TestObserverPanics(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithObserver(redlock.Observer{Acquired: func(time.Duration, string) { panic("observer") }}))
		lockUnlock(t, l, "key")
		eventually(t, bound, "the event counts as dropped", func() bool { return l.Status().DroppedEvents == 1 })
		net.RequireNoKeys(t)
	})
}
