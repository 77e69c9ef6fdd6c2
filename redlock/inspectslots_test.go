package redlock_test

import (
	"errors"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestInspectSlots: whoever asks sees each slot that is held, by whom, and with which fence; and can end each by force.
func TestInspectSlots(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		one, two := simLocker(t, net.Masters(), redlock.WithInstance("one")), simLocker(t, net.Masters(), redlock.WithInstance("two"))
		seen, err := inspect.Slots(t.Context(), one, "k")
		if err != nil || len(seen) != 1 || seen[0].Held {
			t.Fatalf("a free key: %+v, %v", seen, err)
		}
		locks := make(map[int]*redlock.Lock)
		for _, l := range []*redlock.Locker{one, one, two} {
			lock := mustLock(t, l, "k", redlock.WithConcurrency(200), redlock.WithLabel("rule"))
			defer func() { _ = lock.Unlock() }()
			locks[lock.Slot()] = lock
		}
		for name, l := range map[string]*redlock.Locker{"one": one, "two": two} {
			seen, err := inspect.Slots(t.Context(), l, "k")
			if err != nil {
				t.Fatal(err)
			}
			held := 0
			for _, s := range seen {
				lock := locks[s.Slot]
				if !s.Held && s.Slot == 0 && lock == nil {
					continue
				}
				held++
				if lock == nil || s.Fence != lock.Fence() || s.Holder == name && (s.Turn == nil || s.Turn.Label != "rule") {
					t.Errorf("%s sees %+v, of %v", name, s, lock)
				}
			}
			if held != 3 {
				t.Errorf("%s sees %d slots held, want 3", name, held)
			}
		}
		for slot, lock := range locks {
			if err := inspect.Force(t.Context(), two, "k", slot, lock.Fence()+1); !errors.Is(err, inspect.ErrFenceChanged) {
				t.Errorf("slot %d with another fence: %v", slot, err)
			}
			if err := inspect.Force(t.Context(), two, "k", slot, lock.Fence()); err != nil {
				t.Errorf("slot %d: %v", slot, err)
			}
		}
	})
}
