package middleware

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// pace is how long the last requests of a rule held their locks, on whatever keys.
type pace struct {
	holds [16]atomic.Int64 // in ns; 0 if there were fewer requests
	count atomic.Uint32
}

func (p *pace) add(hold time.Duration) {
	p.holds[p.count.Add(1)%uint32(len(p.holds))].Store(int64(hold))
}

// usual returns the median. Requests that there have not been yet count as 0, because a few are not typical of the others.
func (p *pace) usual() time.Duration {
	var holds [len(p.holds)]int64
	for i := range holds {
		holds[i] = p.holds[i].Load()
	}
	slices.Sort(holds[:])
	return time.Duration(holds[len(holds)/2])
}

// retryAfter returns when to repeat a request that met a lock whose lease lasts for the remaining time, 0 if that is not known.
func (p *pace) retryAfter(remaining time.Duration) time.Duration {
	usual := p.usual()
	if 0 < remaining && remaining < usual {
		return spread(remaining)
	}
	return spread(usual)
}

// spread returns whole seconds, at least one, with up to a half more, so that requests which were refused together don't come
// back together.
func spread(d time.Duration) time.Duration {
	seconds := max(1, (d+time.Second-1)/time.Second)
	return (seconds + rand.N(1+(seconds+1)/2)) * time.Second
}
