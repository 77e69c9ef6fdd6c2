package middleware

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// pace is how long the requests of a rule hold their locks: an average in which each weighs an eighth,
// and those before it the less the longer they are ago (the smoothing of RFC 6298).
type pace struct {
	average atomic.Int64 // in ns; 0 while there is none
}

func (p *pace) add(hold time.Duration) {
	for {
		old := p.average.Load()
		next := old + (int64(hold)-old)/8
		if old == 0 {
			next = int64(hold)
		}
		if p.average.CompareAndSwap(old, max(next, 1)) {
			return
		}
	}
}

// line is how many requests can wait for a key and expect to be served within the wait: the holder is
// halfway through, and each in the line takes its time.
func (p *pace) line(wait time.Duration) int {
	average := p.average.Load()
	if average == 0 {
		return math.MaxInt
	}
	return int((int64(wait) + average/2) / average)
}

// retryAfter is when a request may be repeated, after one that met a lock that lasts for the remaining
// time at most, 0 if that is not known: whole seconds, at least one, with up to a half more so that those refused together
// don't come back together.
func (p *pace) retryAfter(remaining time.Duration) time.Duration {
	average := time.Duration(p.average.Load())
	if average == 0 || 0 < remaining && remaining < average {
		return spread(remaining)
	}
	return spread(average)
}

func spread(d time.Duration) time.Duration {
	seconds := max(1, (d+time.Second-1)/time.Second)
	return (seconds + rand.N(1+(seconds+1)/2)) * time.Second
}
