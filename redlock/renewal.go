package redlock

import (
	"cmp"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// renewal is one round of extends for one lock. Nobody waits for it: the replies come to receive.
type renewal struct {
	lock   *Lock
	start  time.Time
	stored int // masters on which the lease is renewed
	taken  int // masters on which another token has the key, or this one was released by force
	failed []*MasterError
}

// renewed returns when the next renewal is due, that much after start, on a grid of 1/30 of the TTL: locks
// that come due within one step of it share their pipelines.
func renewed(start time.Time, after, ttl time.Duration) time.Time {
	return admission.ProcessStart.Add(start.Add(after).Sub(admission.ProcessStart).Truncate(ttl / 30))
}

// renew queues extends for all masters if it is time for that; the keeper has them sent. It returns when the lock is due next; the
// zero time if it has ended. An Unlock at the same time does no harm: an extend that is sent before the release
// is undone by it, and one behind it in the queue is dropped, because its attempt is over.
func (k *Lock) renew(now time.Time) (due time.Time) {
	k.mu.Lock()
	if k.cause == nil && past(k.until) {
		k.ring() // its timer stands still while the host is suspended
		k.next = now.Add(k.attempt.ttl)
	}
	ended, early, until := k.cause != nil, now.Before(k.next), k.until
	r := &renewal{lock: k, start: now}
	var failure error
	if !ended && !early {
		failure = k.renewal.failure()
		k.renewal = r
		// If no quorum answers, the next round comes sooner than usual; receive sets the regular time.
		k.next = renewed(now, k.attempt.ttl/9+k.attempt.ttl/30, k.attempt.ttl)
	}
	due = k.next
	k.mu.Unlock()
	switch {
	case ended:
		return time.Time{}
	case early:
		return due
	case failure != nil:
		k.attempt.locker.observer.Renewed(failure)
	}
	for i, s := range k.attempt.locker.streams {
		s.Enqueue(k.attempt.extension(i, until, r))
	}
	return due
}

// failure returns why a round has not renewed the lease, or nil if it has, or if there was none. The mu of the lock is held.
func (r *renewal) failure() error {
	if r == nil {
		return nil
	}
	a := r.lock.attempt
	quorum := a.locker.quorum
	switch {
	case r.stored >= quorum:
		return nil
	case r.taken > len(a.acquires)-quorum:
		return ErrNotOwner
	}
	return &QuorumError{Answered: r.stored, Quorum: quorum, Total: len(a.acquires), Masters: r.failed}
}

// unrenewed returns why the last round has not renewed the lease, or nil if it has, or if there was none.
func (k *Lock) unrenewed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.renewal.failure()
}

// Receive counts the reply of one master; it runs on that master's goroutine. Once a quorum has stored the
// lease, the lock is valid for another TTL from the start of the round. Where other tokens have the key on
// so many masters that no quorum is left, the lock is lost at once rather than at the end of its lease.
func (r *renewal) Receive(c *link.Command) {
	k, a := r.lock, r.lock.attempt
	quorum := a.locker.quorum
	var failed *MasterError
	if err := c.Reply.Err; err != nil {
		failed = &MasterError{a.name(c.Master), err}
	}
	k.mu.Lock()
	done := false
	switch {
	case k.cause != nil || k.renewal != r || past(k.until):
	case failed != nil:
		r.failed = append(r.failed, failed)
	case c.Reply.Status == protocol.StatusGranted:
		r.stored++
		if done = r.stored == quorum; done {
			k.until = k.bounded(r.start.Add(a.ttl - admission.Drift(a.ttl)))
			a.startTimer(k.until)
			k.next = renewed(r.start, a.ttl/3, a.ttl)
		}
	case c.Reply.Status == protocol.StatusNotOwner, c.Reply.Status == protocol.StatusForced:
		if c.Reply.Status == protocol.StatusForced {
			k.forced, k.by = true, cmp.Or(k.by, c.Reply.Lines)
		}
		r.taken++
		if r.taken == len(a.acquires)-quorum+1 {
			k.until = time.Now()
			k.ring()
		}
	}
	k.mu.Unlock()
	if done {
		a.locker.observer.Renewed(nil)
	}
}

// watch has the attempt's timer end the lock when its validity is over. Each renewal sets it anew, so that it runs out only then.
func (k *Lock) watch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attempt.lock.Store(k)
	if k.cause == nil {
		k.attempt.startTimer(k.until)
	}
}

// ring has the timer run out now. mu is held, and the lock has not ended: after that the timer is the release's.
func (k *Lock) ring() { k.attempt.startTimer(time.Time{}) }

// expire loses the lock if its validity is over. It runs when the timer does.
func (k *Lock) expire() {
	k.mu.Lock()
	cause := ErrLost
	switch {
	case k.cause != nil: // the timer was that of the release
		cause = nil
	case !past(k.until):
		k.attempt.startTimer(k.until)
		cause = nil
	case k.forced:
		cause = ErrForced
	case !k.holdEnd.IsZero() && past(k.holdEnd):
		cause = ErrMaxHold
	}
	k.mu.Unlock()
	if cause != nil {
		k.lose(cause)
	}
}

// lose ends the lock with this cause, before Unlock, on all keys. Then the keeper releases it, and the next call may try. It
// reports whether the lock was held until now.
func (k *Lock) lose(cause error) (held bool) {
	keeper, parts := k.attempt.locker.keeper, k.parts()
	keeper.losing.Add(1)
	lost := make([]*Lock, 0, len(parts)) // an Unlock at the same time may have some of them
	for _, part := range parts {
		if part.end(cause) {
			part.attempt.stopTimer()
			lost = append(lost, part)
		}
	}
	keeper.releaseSoon(lost)
	return len(lost) > 0
}
