package redlock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// fencedStore refuses writes with a smaller fence than it has seen.
type fencedStore struct {
	mu      sync.Mutex
	largest uint64
	value   string
}

func (s *fencedStore) write(fence uint64, value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.largest {
		return false
	}
	s.largest, s.value = fence, value
	return true
}

// TestHolderCutOff: a holder that reaches no master, as one that is paused, which also can't notice it, is followed by another, and the fence
// keeps its late write out.
func TestHolderCutOff(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		own := ownNetwork(net)
		first, l := simLocker(t, net.Masters(own...)), simLocker(t, net.Masters())
		lock := mustLock(t, first, "key")
		stays(t, 2*simTTL, "its holder's", func() bool { return tryLock(t, l, "key") == nil })
		for _, a := range own {
			a.Set(simnet.Weather{Requests: true, Replies: true})
		}
		next := mustLock(t, l, "key", redlock.WithWait(2*simTTL))
		var store fencedStore
		if !store.write(next.Fence(), "second") || store.write(lock.Fence(), "late") {
			t.Errorf("fence %d after %d", next.Fence(), lock.Fence())
		}
		if cause := ended(t, lock.Context()); cause != redlock.ErrLost || lock.Err() != redlock.ErrLost {
			t.Errorf("the first: %v", cause)
		}
		for _, a := range own {
			a.Set(simnet.Weather{})
		}
		time.Sleep(simTTL)
		if next.Err() != nil {
			t.Errorf("the second holder's lock: %v", next.Err())
		}
		mustUnlock(t, next)
	})
}
