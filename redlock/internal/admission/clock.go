package admission

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Clock follows the clock of one master: each reply of the master has the result of TIME.
type Clock struct {
	quarantine time.Duration // how long the master is excluded after its clock has jumped
	peers      *clocks
	zero       time.Time // the origin of the times that are kept as integers, and earlier than all of these
	of         *Clock    // for a node, the Clock of its Redis Cluster, which never gets a reading of its own; nil for a master

	known  atomic.Bool
	resume atomic.Int64 // when the master may vote again, in nanoseconds since zero; 0 if at once
	mark   atomic.Int64 // the latest time that the master's clock has shown while it was right, in microseconds

	// When the clock was last read, and the bounds of the master's time at that moment less ours. Our time counts from zero. Writers hold mu. Readers
	// don't: seen is written last and must be read first.
	mu              sync.Mutex
	low, high, seen atomic.Int64
}

func (c *Clock) greeted(s protocol.Server) {
	if s.Time > 0 {
		c.Observe(s.Time, s.Sent, s.Received)
	}
}

// forget drops all readings, because the clock of another server follows.
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

// clockWindow is how long one reading of a master's clock is compared with later ones. If every reply were compared with the one before it, each
// would add the tolerance for drift once more, and a busy Locker would never notice a clock that runs too fast.
const clockWindow = time.Second

// Observe reads the master's time us, which the master has read between sent and received on our monotonic clock. If the time is outside the bounds
// and the drift since then, the clock has jumped, and leases on the master may end early. So the master is excluded until all of them have ended.
func (c *Clock) Observe(us int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	theirs, now := time.Duration(us)*time.Microsecond, received.Sub(c.zero)
	low, high := theirs-now, theirs-sent.Sub(c.zero)
	if c.known.Load() {
		seen, least, most := time.Duration(c.seen.Load()), time.Duration(c.low.Load()), time.Duration(c.high.Load())
		allowed := tolerance(now - seen)
		switch { // after a slow reply the bounds are wide, so narrower bounds from before stay
		case low > most+allowed || high < least-allowed: // the clock jumped
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

// tolerance returns how far a clock may have drifted in this time, so that it counts as having jumped only beyond that. An idle connection is probed
// every ProbeGap, so a silence of more than twice that means a broken connection. In the rest of such a silence, a clock that nobody sets drifts far
// less than Drift allows.
func tolerance(elapsed time.Duration) time.Duration {
	return Drift(min(elapsed, 2*ProbeGap)) + elapsed/10000
}

// Earliest returns the earliest time, in microseconds, that the master's clock may show at the time t of our clock, or 0 if the
// master's clock isn't known.
func (c *Clock) Earliest(t time.Time) int64 {
	if !c.known.Load() {
		return 0
	}
	at := t.Sub(c.zero)
	since := at - time.Duration(c.seen.Load())
	return (at + time.Duration(c.low.Load()) - Drift(max(since, 0))).Microseconds()
}

func (c *Clock) Trusted(now time.Time) bool { return c.Quarantined(now) == nil }

// Resumes returns when the master may vote again after the last jump of its clock.
func (c *Clock) Resumes() time.Time { return c.zero.Add(time.Duration(c.resume.Load())) }

// Drift is how much shorter a lease may last on a master's clock than on ours: 1 % of the TTL for
// clocks that run at different speeds, and 2 ms because Redis expires keys at whole milliseconds
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, "The Redlock algorithm").
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ProbeGap is how often an idle connection is probed, which also reads the master's clock.
const ProbeGap = 5 * time.Second
