package traefik

import "time"

// clock follows a master's clock by the TIME in its answers, as package redlock does (masterclock.go, skew.go). The locker's mu
// guards it.
type clock struct {
	l     *locker
	known bool

	// How far the master's clock was ahead of processStart's when it was last seen: between low and high.
	low, high, seen time.Duration

	offset int64         // microseconds that it is ahead of our wall clock
	resume time.Duration // since processStart: the master has no vote before, because its clock jumped
	mark   int64         // the latest time that it has shown while it was right, in microseconds

	wrong   string    // why the master has no vote, when that was last checked
	checked time.Time // when that was
}

// checkEvery is how often a clock is checked that has shown nothing new.
const checkEvery = 100 * time.Millisecond

// processStart is the zero of a monotonic clock.
var processStart = time.Now()

// drift returns how much shorter a lease may last on a master's clock than on ours.
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// past reports whether a time is past by the monotonic clock or by the wall clock: unlike the masters' clocks, the monotonic clock
// stops while the host is suspended.
func past(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

func shorter(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func longer(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

// unseen returns how much a clock may have drifted since it was last seen without having jumped.
func unseen(elapsed time.Duration) time.Duration {
	return drift(shorter(elapsed, 2*probeGap)) + elapsed/10000
}

// observe takes the master's time, read between sent and received. If the clock has jumped, leases may end early on that master:
// it has no vote until all of them are over.
func observe(c *clock, us int64, sent, received time.Time) {
	theirs, now := time.Duration(us)*time.Microsecond, received.Sub(processStart)
	low, high := theirs-now, theirs-sent.Sub(processStart)
	if c.known && now-c.seen < clockWindow && low <= c.high && high >= c.low { // it fits what was known
		return
	}
	c.checked = time.Time{}
	if c.known {
		allowed := unseen(now - c.seen)
		if low > c.high+allowed || high < c.low-allowed {
			c.resume = now + c.l.covers()
		} else if now-c.seen < clockWindow {
			low = longer(c.low, low-allowed)
			high = shorter(c.high, high+allowed)
			now = c.seen
		} else {
			low = longer(low, c.low-allowed)
			high = shorter(high, c.high+allowed)
		}
	}
	c.low = low
	c.high = high
	c.seen = now
	c.known = true
	c.offset = us - sent.Add(received.Sub(sent)/2).UnixNano()/1000
}

// ahead returns how far the clock is ahead of processStart's, as far as is known.
func (c *clock) ahead() time.Duration { return c.low/2 + c.high/2 }

// least returns the earliest time that the clock may show at our time t, in microseconds; 0 if the clock is unknown.
func (c *clock) least(t time.Time) int64 {
	if !c.known {
		return 0
	}
	at := t.Sub(processStart)
	return int64((at + c.low - drift(longer(at-c.seen, 0))) / time.Microsecond)
}

// quarantined returns why the master has no vote because of what its clock did before, or "".
func (c *clock) quarantined(now time.Time) string {
	if c.known && time.Duration(c.mark-c.least(now))*time.Microsecond > setBackTolerance {
		return "its clock was set back, and fencing tokens would go back with it: no vote until it shows again what it showed before"
	}
	if c.resume != 0 && now.Sub(processStart) < c.resume {
		return "its clock jumped: no vote until all leases from before have ended"
	}
	return ""
}

// faultOf returns why the master has no vote because of its clock, or "".
func faultOf(c *clock, now time.Time) string {
	if c.l.sets.refused != "" {
		return c.l.sets.refused
	}
	if now.Sub(c.checked) > checkEvery {
		c.checked = now
		c.wrong = ""
		if c.known {
			c.wrong = c.skewed()
		}
		if c.wrong == "" {
			c.wrong = c.quarantined(now)
		}
	}
	return c.wrong
}

// right reports whether the clock agrees with those of a majority, and was not set back.
func (c *clock) right(now time.Time) bool {
	return c.known && c.mark > 0 && c.skewed() == "" && c.quarantined(now) == ""
}

// skewed returns what is wrong with a clock that is known, or "". It must be within half of the max skew from the middle of all known
// clocks, so that no two are further apart than the max skew.
func (c *clock) skewed() string {
	known := make([]int64, 0, len(c.l.streams))
	for _, s := range c.l.streams {
		if s.clock.known {
			known = append(known, int64(s.clock.ahead()))
		}
	}
	sortNumbers(known)
	n := len(known)
	if n < len(c.l.streams) && time.Since(c.l.began) < clockGrace {
		return ""
	}
	off := c.ahead() - time.Duration(known[(n-1)/2]/2+known[n/2]/2)
	if off < 0 {
		off = -off
	}
	if off <= c.l.maxSkew/2 {
		if n > len(c.l.streams)/2 {
			c.marked(int64((c.ahead() + c.seen) / time.Microsecond))
		}
		return ""
	}
	return "its clock is " + off.Round(time.Millisecond).String() + " from the middle of the masters' clocks, which may differ by " + c.l.maxSkew.String() + "; set it right, best by NTP"
}

// marked records a time that the clock has shown while it was right, in microseconds.
func (c *clock) marked(us int64) {
	if us > c.mark {
		c.mark = us
		c.checked = time.Time{}
	}
}

// sortNumbers sorts a few numbers. Under Yaegi, package slices does not take interpreted types.
func sortNumbers(numbers []int64) {
	for i := 1; i < len(numbers); i++ {
		for k := i; k > 0 && numbers[k] < numbers[k-1]; k-- {
			numbers[k], numbers[k-1] = numbers[k-1], numbers[k]
		}
	}
}

// mastersNow returns the time on the masters' clocks, in microseconds, and whether it is known. If fewer masters than a quorum have
// shown their clocks, the time may be our own.
func mastersNow(l *locker) (us int64, known bool) {
	now := time.Now()
	if now.Sub(l.offsetAt) > checkEvery || !l.offsetKnown {
		offsets := make([]int64, 0, len(l.streams))
		for _, s := range l.streams {
			if s.clock.known {
				offsets = append(offsets, s.clock.offset)
			}
		}
		l.offset = 0
		if len(offsets) > 0 {
			sortNumbers(offsets)
			l.offset = offsets[len(offsets)/2]
		}
		l.offsetKnown = len(offsets) >= l.quorum
		l.offsetAt = now
	}
	return now.UnixNano()/1000 + l.offset, l.offsetKnown
}
