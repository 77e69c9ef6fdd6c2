package link

import (
	"fmt"
	"sync/atomic"
	"time"
)

// latency adapts a master's timeout to its round trips, as TCP does (RFC 6298): the smoothed round trip plus
// four deviations. A deviation is taken as at least an eighth of the round trip, because a path that was
// steady so far need not remain so. The timeout is never below the floor, which is the setting, nor above
// four times that.
type latency struct {
	floor     time.Duration
	smoothed  time.Duration
	deviation time.Duration
	current   atomic.Int64  // the timeout that follows from these
	last      atomic.Int64  // the last round trip
	nearest   time.Duration // the shortest round trip of late
}

// perBatch is how much of a round trip justifies a further batch in flight: many small batches cost both
// sides more than their callers gain.
const perBatch = 50 * time.Microsecond

// window returns how many batches should be in flight: two, so that one is at the master while the answer to
// the other is on its way, and more the farther away the master is. Callers hold the stream's mu.
func (l *latency) window() int { return max(2, int(l.nearest/perBatch)) }

func (l *latency) ceiling() time.Duration { return 4 * l.floor }

func (l *latency) timeout() time.Duration {
	return max(l.floor, time.Duration(l.current.Load()))
}

// observe takes a round trip into account. Callers hold the stream's mu.
func (l *latency) observe(rtt time.Duration) {
	l.last.Store(int64(rtt))
	if l.nearest += l.nearest / 256; l.nearest == 0 || rtt < l.nearest {
		l.nearest = rtt
	}
	if rtt > l.ceiling() {
		l.current.Store(int64(l.ceiling()))
		return
	}
	if l.smoothed == 0 {
		l.smoothed, l.deviation = rtt, rtt/2
	} else {
		l.deviation += ((l.smoothed - rtt).Abs() - l.deviation) / 4
		l.smoothed += (rtt - l.smoothed) / 8
	}
	l.current.Store(int64(min(l.smoothed+4*max(l.deviation, l.smoothed/8), l.ceiling())))
}

// advice returns what to do about a master that is too far away for the timeout, or nothing.
func (l *latency) advice() string {
	last := time.Duration(l.last.Load())
	if 2*last <= l.ceiling() {
		return ""
	}
	return fmt.Sprintf(" (its last answer took %v: set the timeout to at least %v)", last.Round(time.Millisecond), (last / 2).Round(time.Millisecond))
}
