package redlock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

var longResult = make([]byte, protocol.ShortResult+1)

// TestEndsWithItsValidity: once the validity of a lock is over, it has ended for whatever asks first, although its timer is late.
func TestEndsWithItsValidity(t *testing.T) {
	const hold = time.Second
	const period = time.Minute
	steps := map[string]func(l *Locker, lock *Lock) error{
		"Err":                    func(_ *Locker, lock *Lock) error { return lock.Err() },
		"Err, and then Unlock":   func(_ *Locker, lock *Lock) error { return errors.Join(lock.Err(), lock.Unlock()) },
		"Unlock":                 func(_ *Locker, lock *Lock) error { return lock.Unlock() },
		"UnlockDone":             func(_ *Locker, lock *Lock) error { return lock.UnlockDone() },
		"UnlockWith":             func(_ *Locker, lock *Lock) error { return lock.UnlockWith(nil, time.Hour) },
		"UnlockWith, and longer": func(_ *Locker, lock *Lock) error { return lock.UnlockWith(longResult, time.Hour) },
		"Force": func(l *Locker, lock *Lock) error {
			_ = Operator.Force(context.Background(), l, "key", 0, lock.Fence()) // or its release came first
			return lock.Err()
		},
		"Close": func(l *Locker, lock *Lock) error {
			_ = l.Close()
			return lock.Err()
		},
	}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := Open([]string{"memory://a", "memory://b", "memory://c"})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				lock, err := l.Lock(t.Context(), "key", WithOncePer(period), WithMaxHold(hold))
				if err != nil {
					t.Fatal(err)
				}
				lock.timer.Stop() // it doesn't come
				time.Sleep(hold)
				if err := step(l, lock); !errors.Is(err, ErrMaxHold) {
					t.Errorf("%v, want ErrMaxHold", err)
				}
				if cause := context.Cause(lock.Context()); cause != ErrMaxHold || lock.Err() != ErrMaxHold {
					t.Errorf("the context has ended by %v, and the lock by %v", cause, lock.Err())
				}
				if err := lock.Unlock(); !errors.Is(err, ErrMaxHold) && name != "Close" {
					t.Errorf("Unlock: %v, want ErrMaxHold", err)
				}
				if name == "Close" {
					return
				}
				again, err := l.Lock(t.Context(), "key", WithRecall())
				if err != nil {
					t.Fatalf("%v: a lock that was lost has left a result, or the key", err)
				}
				if err := again.Unlock(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestDoneAsTheLockEnds: work that ends as its lock does isn't said to be remembered, unless it is.
func TestDoneAsTheLockEnds(t *testing.T) {
	for name, result := range map[string][]byte{"short": nil, "long": longResult} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := Open([]string{"memory://a", "memory://b", "memory://c"})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				got, err := l.Once(t.Context(), "key", time.Hour, func(_ context.Context, lock *Lock) ([]byte, error) {
					lock.timer.Stop()
					time.Sleep(time.Until(lock.Until()))
					return result, nil
				}, WithMaxHold(time.Second))
				if !errors.Is(err, ErrNotRemembered) || !errors.Is(err, ErrMaxHold) || len(got) != len(result) {
					t.Errorf("%d bytes, %v, want ErrNotRemembered and ErrMaxHold with the result", len(got), err)
				}
			})
		})
	}
}

// TestStoredByTooFew: the result of a lock that ends while it is being stored is not said to be remembered, although the timer is late.
func TestStoredByTooFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := openLaned(t, 3, WithTTL(time.Minute), WithMaxTTL(time.Minute)) // renewed after 20 s
		defer l.Close()
		lock, err := l.Lock(t.Context(), "key", WithMaxHold(100*time.Millisecond)) // before the lane is given up
		if err != nil {
			t.Fatal(err)
		}
		lock.timer.Stop()
		if err := lock.UnlockWith(longResult, time.Hour); !errors.Is(err, ErrNotRemembered) || !errors.Is(err, ErrMaxHold) {
			t.Errorf("%v, want ErrNotRemembered and ErrMaxHold", err)
		}
	})
}

// TestStoredAndNotReleased: what a quorum has stored is remembered, whether it confirms the release then or not.
func TestStoredAndNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make([]atomic.Bool, 3) // servers that have stored a result
		net := simnet.New(t, 3)
		var masters []Master
		for i, s := range net.Servers {
			masters = append(masters, Master{net.Addresses[i]})
			s.Forge(func(cmd *simnet.Command) bool {
				if cmd.Op == simnet.Store {
					gone[i].Store(true)
				}
				cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
				return cmd.Op == simnet.Release && gone[i].Load()
			})
		}
		l, err := New(masters)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		lock, err := l.Lock(t.Context(), "first")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.UnlockWith(longResult, time.Hour); !errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrNotRemembered) {
			t.Errorf("UnlockWith: %v, want ErrNoQuorum without ErrNotRemembered", err)
		}
		for i := range gone {
			gone[i].Store(false)
		}
		if _, err := l.Once(t.Context(), "second", time.Hour, func(context.Context, *Lock) ([]byte, error) { return longResult, nil }); err != nil {
			t.Errorf("Once: %v", err)
		}
		for i := range gone {
			gone[i].Store(false)
		}
		for _, key := range []string{"first", "second"} {
			if _, err := l.Lock(t.Context(), key, WithRecall()); !errors.Is(err, ErrDone) {
				t.Errorf("%s: %v, want ErrDone", key, err)
			}
		}
	})
}
