package redlock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// pace bounds how many attempts of a process are under way at once. Without a bound, masters that can't answer all attempts in time would be asked
// again and again, and answer none in time. An attempt that masters haven't answered in time removes one place. As many answered attempts as there
// are places add one, as in TCP's congestion avoidance (V. Jacobson, 1988).
type pace struct {
	places   chan struct{} // has a value for each free place
	most     atomic.Int64
	answered atomic.Int64 // attempts answered in time since the last place was added
}

const (
	firstPace = 64
	leastPace = 16
	mostPace  = 4096
)

func newPace() *pace {
	p := &pace{places: make(chan struct{}, mostPace)}
	p.most.Store(firstPace)
	for range firstPace {
		p.places <- struct{}{}
	}
	return p
}

// begin waits for a place for another attempt. It returns false if ctx ends, closing is closed, or the time that until returns has come. Then no
// attempt may be made. If until returns the zero time, the wait has no deadline.
func (p *pace) begin(ctx context.Context, closing <-chan struct{}, until func() time.Time) bool {
	select {
	case <-p.places:
		return true
	default:
	}
	var over <-chan time.Time
	if until := until(); !until.IsZero() {
		timer := time.NewTimer(max(time.Until(until), soonest))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-p.places:
		return true
	case <-ctx.Done():
	case <-closing:
	case <-over:
	}
	return false
}

func (p *pace) end(late bool) {
	most := p.most.Load()
	switch {
	case late && most > leastPace && p.most.CompareAndSwap(most, most-1):
		return
	case !late && most < mostPace && p.answered.Add(1) >= most && p.most.CompareAndSwap(most, most+1):
		p.answered.Store(0)
		p.places <- struct{}{}
	}
	p.places <- struct{}{}
}

// soonest is the duration for a timer that is due at once. With a duration of 0, Go 1.26 with the race detector crashes in a bubble of
// testing/synctest.
const soonest = time.Nanosecond

// jitter returns a random pause between half and one and a half times d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
