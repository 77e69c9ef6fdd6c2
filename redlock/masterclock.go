package redlock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// masterClock follows the clock of one master by the TIME that its answers carry.
type masterClock struct {
	quarantine time.Duration // how long the master is excluded after its clock has jumped
	peers      *clocks       // those of all masters

	known  atomic.Bool  // it has been read
	resume atomic.Int64 // when the master may vote again, in nanoseconds since processStart; 0 if at once
	mark   atomic.Int64 // the latest time that it has shown while it was right, in microseconds

	// By how much the master's clock was ahead of processStart's when it was last seen: certainly between low
	// and high. Writers hold mu. Readers don't: seen is written last and must be read first.
	mu              sync.Mutex
	low, high, seen atomic.Int64
}

// greeted takes the time that a server reports in its greeting.
func (c *masterClock) greeted(s protocol.Server) {
	if s.Time > 0 {
		c.observe(s.Time, s.Sent, s.Received)
	}
}

// forget starts over: the clock is another server's now.
func (c *masterClock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Store(false)
}

// lastSeen returns when, on our clock, the master's was last read, or the zero time if it never was.
func (c *masterClock) lastSeen() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known.Load() {
		return time.Time{}
	}
	return processStart.Add(time.Duration(c.seen.Load()))
}

// clockWindow is how long one reading of a master's clock stays the reference for later ones. If every
// answer became the reference, each would add the tolerance for drift once more, and a busy Locker would
// never notice a clock that runs too fast.
const clockWindow = time.Second

// processStart is the zero of our monotonic clock, so that its times fit into an integer.
var processStart = time.Now()

// observe takes the master's time, read between sent and received on our monotonic clock. If that lies
// outside what was known and what drift explains, the clock has jumped, and leases on the master may end
// early: it is excluded until all of them have ended.
func (c *masterClock) observe(us int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	theirs, now := time.Duration(us)*time.Microsecond, received.Sub(processStart)
	low, high := theirs-now, theirs-sent.Sub(processStart)
	if c.known.Load() {
		seen, least, most := time.Duration(c.seen.Load()), time.Duration(c.low.Load()), time.Duration(c.high.Load())
		allowed := tolerance(now - seen)
		switch { // a slow answer has wide bounds: narrower ones from before still hold
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
	c.known.Store(true)
}

// tolerance returns how far a clock may have drifted since it was last read without having jumped. An idle
// connection is probed every probeGap, so more than twice that only passes while it is broken; for the rest
// of such a time a clock that isn't set drifts by far less than drift allows for.
func tolerance(elapsed time.Duration) time.Duration {
	return drift(min(elapsed, 2*probeGap)) + elapsed/10000
}

// earliest returns the earliest time, in microseconds, that the master's clock may show at t of ours, or 0 if the
// clock isn't known.
func (c *masterClock) earliest(t time.Time) int64 {
	if !c.known.Load() {
		return 0
	}
	at := t.Sub(processStart)
	since := at - time.Duration(c.seen.Load())
	return (at + time.Duration(c.low.Load()) - drift(max(since, 0))).Microseconds()
}

// trusted reports whether nothing that the clock has done before excludes the master.
func (c *masterClock) trusted(now time.Time) bool { return c.quarantined(now) == nil }
