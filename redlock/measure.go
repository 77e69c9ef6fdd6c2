package redlock

import (
	"errors"
	"sync/atomic"
	"time"
)

// latency adapts the time-out of a master to what is seen, as TCP does (RFC 6298): the smoothed
// round trip and four deviations, but never below the floor, nor above four times the floor, where
// a master is hung rather than far away.
type latency struct {
	floor     time.Duration
	smoothed  time.Duration
	deviation time.Duration
	current   atomic.Int64
}

func (l *latency) timeout() time.Duration {
	return max(l.floor, time.Duration(l.current.Load()))
}

func (l *latency) observe(rtt time.Duration) {
	ceiling := 4 * l.floor
	if rtt > ceiling {
		return
	}
	if l.smoothed == 0 {
		l.smoothed, l.deviation = rtt, rtt/2
	} else {
		l.deviation += ((l.smoothed - rtt).Abs() - l.deviation) / 4
		l.smoothed += (rtt - l.smoothed) / 8
	}
	l.current.Store(int64(min(l.smoothed+4*l.deviation, ceiling)))
}

// masterClock follows a master's clock through the TIME that its answers carry.
type masterClock struct {
	quarantine time.Duration // for which a master has no vote after its clock jumped

	offset atomic.Int64 // microseconds that the master's clock is ahead of ours
	known  atomic.Bool
	resume atomic.Int64 // when a master may vote again, in nanoseconds since processStart; 0 if at once

	// How far the master's clock is ahead of processStart's, certain within low and high when it was
	// last seen. The stream's goroutine alone writes them; seen is written last, and read first.
	low, high, seen atomic.Int64
}

// clockWindow is for how long a master's clock is compared with the same moment: were it each time the
// last answer's, a busy Locker would allow a clock that runs too fast a little more with every answer.
const clockWindow = time.Second

var errClockJump = errors.New("its clock jumped: no vote until all leases from before have ended")

// processStart is the zero of a monotonic clock that fits into an integer.
var processStart = time.Now()

// observe takes the master's time, read between sent and received on our monotonic clock. If it has
// jumped since the last time, by more than what drift allows for, leases on it may end early: the
// master has no vote until all of them are over.
func (c *masterClock) observe(us int64, sent, received time.Time) {
	theirs, now := time.Duration(us)*time.Microsecond, received.Sub(processStart)
	low, high := theirs-now, theirs-sent.Sub(processStart)
	if c.known.Load() {
		seen, least, most := time.Duration(c.seen.Load()), time.Duration(c.low.Load()), time.Duration(c.high.Load())
		allowed := drift(now - seen)
		switch { // a slow answer tells little: what was known before still holds
		case low > most+allowed || high < least-allowed: // it jumped
			c.resume.Store(int64(now + c.quarantine))
		case now-seen < clockWindow:
			low, high, now = max(least, low-allowed), min(most, high+allowed), seen
		default:
			low, high = max(low, least-allowed), min(high, most+allowed)
		}
	}
	c.low.Store(int64(low))
	c.high.Store(int64(high))
	c.seen.Store(int64(now))
	middle := sent.Add(received.Sub(sent) / 2)
	c.offset.Store(us - middle.UnixMicro())
	c.known.Store(true)
}

// least gives what the master's clock, in microseconds, shows at the least at a time of ours; 0 if it
// is not known.
func (c *masterClock) least(t time.Time) int64 {
	if !c.known.Load() {
		return 0
	}
	at := t.Sub(processStart)
	since := at - time.Duration(c.seen.Load())
	return (at + time.Duration(c.low.Load()) - drift(max(since, 0))).Microseconds()
}

func (c *masterClock) trusted(now time.Time) bool {
	resume := c.resume.Load()
	return resume == 0 || int64(now.Sub(processStart)) >= resume
}
