package redlock

import "time"

// renewal is one round of extends of a lock. It doesn't wait: the answers come to receive.
type renewal struct {
	lock   *Lock
	start  time.Time
	stored int // masters on which the lease is renewed
	taken  int // masters on which another has the key
}

// renewed says when a lease that was renewed, or tried to be, at start is due again: on a grid of
// 1/30 of the TTL, so that the extends of many locks share pipelines.
func renewed(start time.Time, after, ttl time.Duration) time.Time {
	return processStart.Add(start.Add(after).Sub(processStart).Truncate(ttl / 30))
}

// due is when the keeper must look at the lock.
func (k *Lock) due() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.until.Before(k.next) {
		return k.until
	}
	return k.next
}

// lost gives the cause if the lock is lost now.
func (k *Lock) lost() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !past(k.until):
		return nil
	case past(k.holdEnd):
		return ErrMaxHold
	}
	return ErrLost
}

// renew queues extends for all masters if it is time; the keeper has them sent. It is false if the
// lock has ended. An extend that meets a release in a stream is harmless: one before it is undone by
// it, and one behind it is dropped, because the attempt is over then.
func (k *Lock) renew(now time.Time) bool {
	k.mu.Lock()
	ended, early, until := k.ended, now.Before(k.next), k.until
	r := &renewal{lock: k, start: now}
	if !ended && !early {
		k.renewal = r
		k.next = renewed(now, k.attempt.ttl/9+k.attempt.ttl/30, k.attempt.ttl) // unless receive says otherwise
	}
	k.mu.Unlock()
	if ended || early {
		return !ended
	}
	k.attempt.touched.Store(true)
	for i, s := range k.attempt.locker.streams {
		s.enqueue(k.attempt.extension(i, s.clock.least(until), r))
	}
	return true
}

// receive counts the answer of one master, on that master's goroutine. A quorum renews the lease,
// from when the round began; where another has taken so many keys that no quorum can be had, the
// lock is lost at once.
func (r *renewal) receive(c *call) {
	k, a := r.lock, r.lock.attempt
	quorum := a.locker.quorum
	k.mu.Lock()
	taken := false
	switch {
	case k.ended || k.renewal != r || past(k.until):
	case c.Reply.Status == StatusGranted:
		r.stored++
		if r.stored == quorum {
			k.until = earlier(r.start.Add(a.ttl-drift(a.ttl)), k.holdEnd)
			k.next = renewed(r.start, a.ttl/3, a.ttl)
		}
	case c.Reply.Status == StatusNotOwner:
		r.taken++
		if taken = r.taken == len(a.calls)-quorum+1; taken {
			k.until = time.Now()
		}
	}
	k.mu.Unlock()
	if taken {
		a.locker.keeper.hurry(k)
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
