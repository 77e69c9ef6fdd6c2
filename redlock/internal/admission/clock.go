package admission

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Clock follows the clock of one master by the TIME that its replies carry.
type Clock struct {
	quarantine time.Duration // how long the master is excluded after its clock has jumped
	peers      *clocks       // the clocks of all masters
	zero       time.Time     // a time on our monotonic clock before all others, so that its times fit into integers
	of         *Clock        // for a node, the clock of its Redis Cluster, which is never known itself; nil for a master

	known  atomic.Bool  // it has been read
	resume atomic.Int64 // when the master may vote again, in nanoseconds since zero; 0 if at once
	mark   atomic.Int64 // the latest time that it has shown while it was right, in microseconds

	// How far the master's clock was ahead of ours, since zero, when it was last read: between low and high. Writers hold mu. Readers don't: seen is
	// written last and must be read first.
	mu              sync.Mutex
	low, high, seen atomic.Int64
}

// greeted takes the time that a server reports in its greeting.
func (c *Clock) greeted(s protocol.Server) {
	if s.Time > 0 {
		c.Observe(s.Time, s.Sent, s.Received)
	}
}

// forget starts over, because another server's clock follows.
func (c *Clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Store(false)
}

// LastSeen returns when, on our clock, the master's clock was last read, or the zero time.
func (c *Clock) LastSeen() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known.Load() {
		return time.Time{}
	}
	return c.zero.Add(time.Duration(c.seen.Load()))
}

// clockWindow is how long one reading of a master's clock stays the reference for later ones. If every reply became the reference, each would add the
// tolerance for drift once more, and a busy Locker would never notice a clock that runs too fast.
const clockWindow = time.Second

// Observe takes the master's time, read between sent and received on our monotonic clock. If it lies outside the known bounds and the drift since,
// the clock has jumped, and leases on the master may end early: the master is excluded until all of them have ended.
func (c *Clock) Observe(us int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	theirs, now := time.Duration(us)*time.Microsecond, received.Sub(c.zero)
	low, high := theirs-now, theirs-sent.Sub(c.zero)
	if c.known.Load() {
		seen, least, most := time.Duration(c.seen.Load()), time.Duration(c.low.Load()), time.Duration(c.high.Load())
		allowed := tolerance(now - seen)
		switch { // a slow reply has wide bounds: narrower ones from before still hold
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

// tolerance returns how far a clock may have drifted since it was last read without a jump. An idle connection is probed every ProbeGap, so more than
// twice that passes only while it is broken. For the rest of that time, a clock that isn't set drifts far less than drift allows.
func tolerance(elapsed time.Duration) time.Duration {
	return Drift(min(elapsed, 2*ProbeGap)) + elapsed/10000
}

// Earliest returns the earliest time, in microseconds, that the master's clock may show at t of ours, or 0 if the
// clock isn't known.
func (c *Clock) Earliest(t time.Time) int64 {
	if !c.known.Load() {
		return 0
	}
	at := t.Sub(c.zero)
	since := at - time.Duration(c.seen.Load())
	return (at + time.Duration(c.low.Load()) - Drift(max(since, 0))).Microseconds()
}

// Trusted reports whether no earlier fault of the clock excludes the master.
func (c *Clock) Trusted(now time.Time) bool { return c.Quarantined(now) == nil }

// Resumes returns when the master may vote again after the last jump of its clock.
func (c *Clock) Resumes() time.Time { return c.zero.Add(time.Duration(c.resume.Load())) }

// Drift is how much shorter a lease may last on a master's clock than on ours: 1 % of the TTL for
// clocks that run at different speeds, and 2 ms because Redis expires keys at whole milliseconds
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, "The Redlock algorithm").
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ProbeGap is how often an idle connection is probed, which also reads the master's clock.
const ProbeGap = 5 * time.Second
