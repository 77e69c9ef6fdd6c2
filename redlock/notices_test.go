package redlock

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoticesAreBounded: what finds no room is dropped, counted, and told of once there is room again; what panics counts too.
func TestNoticesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const more = 7
		block := make(chan struct{})
		var got, told atomic.Int64
		n := &notices[int]{missed: func(n uint64) { told.Add(int64(n)); panic("missed") }}
		n.receive = func(i int) {
			<-block
			if i == -1 {
				panic("receive")
			}
			got.Add(1)
		}
		n.push(0)
		synctest.Wait() // the receiver has it, and blocks
		n.push(-1)
		for i := range maxNotices - 1 + more {
			n.push(i)
		}
		if n.count() != more {
			t.Errorf("%d dropped, want %d", n.count(), more)
		}
		began := time.Now()
		n.close()
		if waited := time.Since(began); waited != lastNotices {
			t.Errorf("close has waited %v for one that blocks", waited)
		}
		close(block)
		synctest.Wait()
		if got.Load() != maxNotices || n.count() != more+1 || told.Load() != more+1 {
			t.Errorf("%d received, %d dropped, told of %d", got.Load(), n.count(), told.Load())
		}
		n.push(0)
		if got.Load() != maxNotices+1 {
			t.Error("after close, push has not delivered")
		}
	})
}

// TestEndsWithoutTheKeeper: a context ends at the end of its lease, although what renews and releases leases hangs.
func TestEndsWithoutTheKeeper(t *testing.T) {
	t.Parallel()
	l, err := Open([]string{"memory://"}, WithRestartGuard(0), WithTTL(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	lock, err := l.Lock(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	work, cancel := lock.WithContext(t.Context())
	defer cancel()
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	l.gates.mu.Lock()
	defer l.gates.mu.Unlock()
	select {
	case <-work.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the work goes on without a lease")
	}
	if cause := context.Cause(work); cause != ErrLost || time.Now().Before(lock.Until()) {
		t.Errorf("the work has ended by %v, %v before its lease", cause, time.Until(lock.Until()))
	}
}
