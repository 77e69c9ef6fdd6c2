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

	// of the stream's goroutine alone: the last offset, certain within low and high, and when
	low, high time.Duration
	seen      time.Time
}

var errClockJump = errors.New("its clock jumped: no vote until all leases from before have ended")

// processStart is the zero of a monotonic clock that fits into an integer.
var processStart = time.Now()

// observe takes the master's time, read between sent and received on our monotonic clock. It says
// whether the master's clock has jumped since the last time, by more than what drift allows for:
// then leases on it may end early, and it has no vote until all of them are over.
func (c *masterClock) observe(us int64, sent, received time.Time) (jumped bool) {
	theirs := time.Duration(us) * time.Microsecond
	low, high := theirs-received.Sub(processStart), theirs-sent.Sub(processStart)
	if !c.seen.IsZero() {
		allowed := drift(received.Sub(c.seen))
		jumped = low > c.high+allowed || high < c.low-allowed
	}
	c.low, c.high, c.seen = low, high, received
	middle := sent.Add(received.Sub(sent) / 2)
	c.offset.Store(us - middle.UnixMicro())
	c.known.Store(true)
	if jumped {
		c.resume.Store(int64(received.Add(c.quarantine).Sub(processStart)))
	}
	return jumped
}

// at gives the master's time, in microseconds, at a time of ours; 0 if its clock is not known.
func (c *masterClock) at(t time.Time) int64 {
	if !c.known.Load() {
		return 0
	}
	return t.UnixMicro() + c.offset.Load()
}

func (c *masterClock) trusted(now time.Time) bool {
	resume := c.resume.Load()
	return resume == 0 || int64(now.Sub(processStart)) >= resume
}
