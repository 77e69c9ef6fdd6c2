package admission

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// clocks are the clocks of all masters of a Locker. A server that restarts forgets its fences, and makes new ones from its clock. After the restart
// guard these are larger than the forgotten ones only if the masters' clocks differ by less than the guard. So the clocks may differ by maxSkew at
// most.
type clocks struct {
	maxSkew time.Duration
	all     []*Clock
	began   time.Time
	refused func() error             // returns the reason why this process may not lock now, whatever the clocks show; or nil
	nodes   atomic.Pointer[[]*Clock] // the clocks of the nodes of Redis Clusters
}

func newClocks(n int, s Settings) *clocks {
	cs := &clocks{maxSkew: s.MaxSkew, began: time.Now(), refused: s.Refused}
	if cs.refused == nil {
		cs.refused = func() error { return nil }
	}
	cs.nodes.Store(&[]*Clock{})
	for range n {
		cs.all = append(cs.all, &Clock{quarantine: s.Covers(), zero: cs.began, peers: cs})
	}
	return cs
}

// clockGrace is how long the check waits for all clocks to be known. If only two are known and they differ, it can't tell which one is wrong.
const clockGrace = 2 * time.Second

// SetBackTolerance is how far a clock may be set back without harm. Masters remember fences for longer than that.
const SetBackTolerance = time.Second

var (
	ErrClockJump = errors.New("its clock jumped: excluded until all leases from before that have ended")
	ErrClockSkew = errors.New("its clock is wrong")
	ErrClockBack = errors.New("its clock was set back, and fencing tokens would go back with it")
)

// Fault returns the reason why a master's clock excludes the master from the quorum, or nil.
func (c *Clock) Fault(now time.Time) error {
	if err := c.peers.refused(); err != nil {
		return err
	}
	if c.known.Load() {
		if err := c.peers.check(c); err != nil {
			return err
		}
	}
	return c.Quarantined(now)
}

// Quarantined returns the reason why an earlier jump or setting back of the clock still excludes its master, or nil.
func (c *Clock) Quarantined(now time.Time) error {
	if back := c.setBackBy(now); back > 0 {
		return fmt.Errorf("%w: excluded for another %v, until it shows again what it showed before", ErrClockBack, back.Round(time.Millisecond))
	}
	if resume := c.resume.Load(); resume != 0 && int64(now.Sub(c.zero)) < resume {
		return ErrClockJump
	}
	return nil
}

// setBackBy returns how long it takes until the clock shows its latest time, the mark, again. It is 0 if the clock is past the mark, or was set back
// by less than SetBackTolerance. It checks the clock at the time now or, if that is later, at the last reading, because a late reply to an old
// command must not make the clock look set back.
func (c *Clock) setBackBy(now time.Time) time.Duration {
	if seen := c.zero.Add(time.Duration(c.seen.Load())); now.Before(seen) {
		now = seen
	}
	back := time.Duration(c.mark.Load()-c.Earliest(now)) * time.Microsecond
	if back <= SetBackTolerance || !c.known.Load() {
		return 0
	}
	return back
}

// Confirmed returns the latest time, in microseconds, that the clock has shown while it was right. It is 0 if that time isn't known, or if the clock
// is wrong now, has jumped or was set back.
func (c *Clock) Confirmed(now time.Time) (us int64) {
	if c.known.Load() && c.mark.Load() > 0 && c.peers.check(c) == nil && c.Quarantined(now) == nil {
		us = c.mark.Load()
	}
	return us
}

// RaiseMark raises the mark to a time, in microseconds, that the clock has shown while it was right.
func (c *Clock) RaiseMark(us int64) {
	for mark := c.mark.Load(); us > mark && !c.mark.CompareAndSwap(mark, us); mark = c.mark.Load() {
	}
}

// Shows returns the time since 1970 on the master's clock when our clock shows now, and whether it is known.
func (c *Clock) Shows(now time.Time) (clock time.Duration, known bool) {
	return now.Sub(c.zero) + c.ahead(), c.known.Load()
}

// ahead returns how far a known clock is ahead of our time, which counts from zero: the middle of the bounds.
func (c *Clock) ahead() time.Duration {
	return time.Duration(c.low.Load()/2 + c.high.Load()/2)
}

// Offset returns how far the clock is ahead of our wall clock; 0 if the clock isn't known.
func (c *Clock) Offset(now time.Time) time.Duration {
	if !c.known.Load() {
		return 0
	}
	return now.Sub(c.zero) + c.ahead() - time.Duration(now.UnixNano())
}

// check returns an error if a known clock is further than half of the max skew from the median of all known clocks. So two accepted clocks differ by
// at most the max skew. The median is right as long as a majority of the clocks is.
func (cs *clocks) check(c *Clock) error {
	var room [8]time.Duration
	known := room[:0]
	nodes := *cs.nodes.Load()
	for _, master := range cs.all {
		if master.known.Load() {
			known = append(known, master.ahead())
		} else if ahead, ok := aheadOf(master, nodes); ok {
			known = append(known, ahead)
		}
	}
	slices.Sort(known)
	n := len(known)
	// n is 0 if a node has just left its cluster, or a server was just replaced.
	if n == 0 || n < len(cs.all) && time.Since(cs.began) < clockGrace {
		return nil
	}
	middle := known[(n-1)/2]/2 + known[n/2]/2
	ahead := c.ahead() // read only once, because it may change meanwhile
	off := ahead - middle
	if off.Abs() <= cs.maxSkew/2 || cs.maxSkew == 0 {
		if n > len(cs.all)/2 {
			// Only the lower bound is certain: the middle may be half a round trip too late.
			seen := c.seen.Load()
			c.RaiseMark(time.Duration(c.low.Load() + seen).Microseconds())
		}
		return nil
	}
	direction := "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return fmt.Errorf("%w: it is %v %s the median of the masters' clocks, and may be %v at most (half of max skew): synchronize it, for example by NTP",
		ErrClockSkew, off.Abs().Round(time.Millisecond), direction, cs.maxSkew/2)
}

// aheadOf returns the median of the clocks of a Redis Cluster's nodes, which have one vote together, and whether any is known.
func aheadOf(cluster *Clock, nodes []*Clock) (ahead time.Duration, known bool) {
	var all []time.Duration
	for _, n := range nodes {
		if n.of == cluster && n.known.Load() {
			all = append(all, n.ahead())
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	return all[len(all)/2], true
}

func (cs *clocks) addNode(cluster *Clock, quarantine time.Duration) *Clock {
	c := &Clock{quarantine: quarantine, zero: cs.began, peers: cs, of: cluster}
	cs.setNodes(func(nodes []*Clock) []*Clock { return append(nodes, c) })
	return c
}

func (cs *clocks) dropNode(c *Clock) {
	cs.setNodes(func(nodes []*Clock) []*Clock {
		return slices.DeleteFunc(nodes, func(other *Clock) bool { return other == c })
	})
}

func (cs *clocks) setNodes(set func([]*Clock) []*Clock) {
	for {
		old := cs.nodes.Load()
		nodes := set(slices.Clone(*old))
		if cs.nodes.CompareAndSwap(old, &nodes) {
			return
		}
	}
}
