package admission

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Clock follows the clock of one master. Each reply of the master has the time on that clock (TIME).
type Clock struct {
	quarantine time.Duration // how long the master is excluded after its clock has jumped
	peers      *clocks
	zero       time.Time // the origin of the times that are kept as integers; it is earlier than all of them
	of         *Clock    // for a node, the Clock of its Redis Cluster, which has no readings of its own; nil for a master

	known  atomic.Bool
	resume atomic.Int64 // when the master may vote again, in nanoseconds since zero; 0 if at once
	mark   atomic.Int64 // the latest time that the master's clock has shown while it was right, in microseconds

	// seen is when the clock was last read, and low and high bound the master's time at that moment less our time. Our time counts from zero. Writers
	// hold mu. Readers don't, so seen is written last and must be read first.
	mu              sync.Mutex
	low, high, seen atomic.Int64
}

func (c *Clock) greeted(s protocol.Server) {
	if s.Time > 0 {
		c.Observe(s.Time, s.Sent, s.Received)
	}
}

// forget drops all readings. The next reading is of a different server's clock.
func (c *Clock) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Store(false)
}

// LastSeen returns the time on our clock when the master's clock was last read, or the zero time.
func (c *Clock) LastSeen() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known.Load() {
		return time.Time{}
	}
	return c.zero.Add(time.Duration(c.seen.Load()))
}

// clockWindow is how long one reading of a master's clock is compared with later ones. If every reply were compared with the previous one, each would
// add the tolerance for drift again, and a busy Locker would never notice a clock that runs too fast.
const clockWindow = time.Second

// Observe notes a reading us of the master's clock, which was made between sent and received on our monotonic clock. If the reading is outside the
// earlier bounds and the allowed drift since then, the clock has jumped, and leases on the master may end early. So the master is excluded until all
// of these leases have ended.
func (c *Clock) Observe(us int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	theirs, now := time.Duration(us)*time.Microsecond, received.Sub(c.zero)
	low, high := theirs-now, theirs-sent.Sub(c.zero)
	if c.known.Load() {
		seen, least, most := time.Duration(c.seen.Load()), time.Duration(c.low.Load()), time.Duration(c.high.Load())
		allowed := tolerance(now - seen)
		switch { // the bounds from a slow reply are wide, so narrower earlier bounds are kept
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

// tolerance returns how far a clock may drift in this time without counting as having jumped. An idle connection is probed every ProbeGap, so a
// silence of more than twice that means a broken connection. In the rest of such a silence, a clock that nobody sets drifts far less than Drift
// allows.
func tolerance(elapsed time.Duration) time.Duration {
	return Drift(min(elapsed, 2*ProbeGap)) + elapsed/10000
}

// Earliest returns the earliest time, in microseconds, that the master's clock may show when our clock shows t, or 0 if the master's clock isn't
// known.
func (c *Clock) Earliest(t time.Time) int64 {
	if !c.known.Load() {
		return 0
	}
	at := t.Sub(c.zero)
	since := at - time.Duration(c.seen.Load())
	return (at + time.Duration(c.low.Load()) - Drift(max(since, 0))).Microseconds()
}

func (c *Clock) Trusted(now time.Time) bool { return c.Quarantined(now) == nil }

// Resumes returns when the master may vote again after the last jump of its clock, or the origin of the times if there was no jump.
func (c *Clock) Resumes() time.Time { return c.zero.Add(time.Duration(c.resume.Load())) }

// Drift is how much shorter a lease may last on a master's clock than on ours: 1 % of the TTL for
// clocks that run at different speeds, and 2 ms because Redis expires keys at whole milliseconds
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, "The Redlock algorithm").
func Drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// ProbeGap is how often an idle connection is probed, which also reads the master's clock.
const ProbeGap = 5 * time.Second
