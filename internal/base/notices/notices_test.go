package notices

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueueIsBounded: what finds no room is dropped, counted, and told of once there is room again; what panics counts too.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const more = 7
		block := make(chan struct{})
		var got, told atomic.Int64
		n := &Queue[int]{Missed: func(n uint64) { told.Add(int64(n)); panic("missed") }}
		n.Receive = func(i int) {
			<-block
			if i == -1 {
				panic("receive")
			}
			got.Add(1)
		}
		n.Push(0)
		synctest.Wait() // the receiver has it, and blocks
		n.Push(-1)
		for i := range Most - 1 + more {
			n.Push(i)
		}
		if n.Count() != more {
			t.Errorf("%d dropped, want %d", n.Count(), more)
		}
		began := time.Now()
		n.Close()
		if waited := time.Since(began); waited != grace {
			t.Errorf("close has waited %v for one that blocks", waited)
		}
		close(block)
		synctest.Wait()
		if got.Load() != Most || n.Count() != more+1 || told.Load() != more+1 {
			t.Errorf("%d received, %d dropped, told of %d", got.Load(), n.Count(), told.Load())
		}
		n.Push(0)
		if got.Load() != Most+1 {
			t.Error("after close, push has not delivered")
		}
	})
}
