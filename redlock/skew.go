package redlock

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// clocks are those of all masters of a Locker. A server that restarts forgets its fences, and the restart
// guard makes up for that only if the clocks differ by less than the guard. So the max skew is checked
// rather than assumed.
type clocks struct {
	maxSkew time.Duration
	all     []*masterClock
	began   time.Time
	refused func() error                   // returns why no master's vote counts now, whatever its clock
	nodes   atomic.Pointer[[]*masterClock] // those of the nodes of Redis Clusters
}

func newClocks(n int, o options) *clocks {
	cs := &clocks{maxSkew: o.maxSkew, began: time.Now(), refused: func() error { return nil }}
	cs.nodes.Store(&[]*masterClock{})
	for range n {
		cs.all = append(cs.all, &masterClock{quarantine: o.covers(), peers: cs})
	}
	return cs
}

// clockGrace is how long the check waits until all clocks are known: of two that differ it can't tell which
// one is wrong.
const clockGrace = 2 * time.Second

// setBackTolerance is how far a clock may be set back without consequences: fences are remembered for longer.
const setBackTolerance = time.Second

var (
	errClockJump = errors.New("its clock jumped: excluded until all leases from before that have ended")
	errClockSkew = errors.New("its clock is wrong")
	errClockBack = errors.New("its clock was set back, and fencing tokens would go back with it")
)

// fault returns why a master's clock excludes it from the quorum, or nil.
func (c *masterClock) fault(now time.Time) error {
	if err := c.peers.refused(); err != nil {
		return err
	}
	if c.known.Load() {
		if err := c.peers.check(c); err != nil {
			return err
		}
	}
	return c.quarantined(now)
}

// quarantined returns why a master is excluded for what its clock has done before, or nil.
func (c *masterClock) quarantined(now time.Time) error {
	if back := c.setBackBy(now); back > 0 {
		return fmt.Errorf("%w: excluded for another %v, until it shows again what it showed before", errClockBack, back.Round(time.Millisecond))
	}
	if resume := c.resume.Load(); resume != 0 && int64(now.Sub(processStart)) < resume {
		return errClockJump
	}
	return nil
}

// setBackBy returns how long it takes until the clock shows again what it has shown before, or 0 if it does
// now. The answer to a command that was sent long ago must not count as set back, because the clock has been
// read since: so what counts is the later of now and that reading.
func (c *masterClock) setBackBy(now time.Time) time.Duration {
	if seen := processStart.Add(time.Duration(c.seen.Load())); now.Before(seen) {
		now = seen
	}
	back := time.Duration(c.mark.Load()-c.earliest(now)) * time.Microsecond
	if back <= setBackTolerance || !c.known.Load() {
		return 0
	}
	return back
}

// confirmed reports whether the clock agrees with a majority and hasn't been set back or jumped.
func (c *masterClock) confirmed(now time.Time) bool {
	return c.known.Load() && c.mark.Load() > 0 && c.peers.check(c) == nil && c.quarantined(now) == nil
}

// raiseMark takes a time, in microseconds, that the clock has shown while it was right.
func (c *masterClock) raiseMark(us int64) {
	for mark := c.mark.Load(); us > mark && !c.mark.CompareAndSwap(mark, us); mark = c.mark.Load() {
	}
}

// lead returns how far the clock is ahead of our monotonic one, by the middle of the bounds.
func (c *masterClock) lead() time.Duration {
	return time.Duration(c.low.Load()/2 + c.high.Load()/2)
}

// offset returns how far the clock is ahead of our wall clock, which may be set at any time; 0 if it isn't known.
func (c *masterClock) offset(now time.Time) time.Duration {
	if !c.known.Load() {
		return 0
	}
	return now.Sub(processStart) + c.lead() - time.Duration(now.UnixNano())
}

// check returns what is wrong with a clock that is known: it must be within half of the max skew from the
// median of all that are known, so that no two of them are further apart. The median is right as long as a
// majority is.
func (cs *clocks) check(c *masterClock) error {
	var room [8]time.Duration
	known := room[:0]
	for _, some := range [2][]*masterClock{cs.all, *cs.nodes.Load()} {
		for _, other := range some {
			if other.known.Load() {
				known = append(known, other.lead())
			}
		}
	}
	slices.Sort(known)
	n := len(known)
	// With no clock to compare it with, that of a node that has just left its cluster, or of a server that was just replaced,
	// isn't wrong.
	if n == 0 || n < len(cs.all) && time.Since(cs.began) < clockGrace {
		return nil
	}
	middle := known[(n-1)/2]/2 + known[n/2]/2
	ahead := c.lead() // read once, as it may change meanwhile
	off := ahead - middle
	if off.Abs() <= cs.maxSkew/2 || cs.maxSkew == 0 {
		if n > len(cs.all)/2 {
			// Only the lower bound is certain: the middle may be too late, by half a round trip.
			c.raiseMark(time.Duration(c.low.Load() + c.seen.Load()).Microseconds())
		}
		return nil
	}
	direction := "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return fmt.Errorf("%w: it is %v %s the median of the masters' clocks, and may be %v at most (half of max skew): synchronize it, for example by NTP",
		errClockSkew, off.Abs().Round(time.Millisecond), direction, cs.maxSkew/2)
}

// addNode adds the clock of a node of a Redis Cluster.
func (cs *clocks) addNode(o options) *masterClock {
	c := &masterClock{quarantine: o.covers(), peers: cs}
	cs.setNodes(func(nodes []*masterClock) []*masterClock { return append(nodes, c) })
	return c
}

// dropNode removes it.
func (cs *clocks) dropNode(c *masterClock) {
	cs.setNodes(func(nodes []*masterClock) []*masterClock {
		return slices.DeleteFunc(nodes, func(other *masterClock) bool { return other == c })
	})
}

func (cs *clocks) setNodes(set func([]*masterClock) []*masterClock) {
	for {
		old := cs.nodes.Load()
		nodes := set(slices.Clone(*old))
		if cs.nodes.CompareAndSwap(old, &nodes) {
			return
		}
	}
}
