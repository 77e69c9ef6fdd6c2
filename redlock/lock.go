package redlock

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Lock is a lock that is held until Unlock, or until it is lost. Its lease is renewed meanwhile. Its methods are
// safe for concurrent use.
type Lock struct {
	attempt     *attempt
	gate        *gate
	caller      *caller
	acquisition Acquisition
	ctx         context.Context
	cancel      context.CancelCauseFunc
	holdEnd     time.Time // when it is lost although it could be renewed; zero for never

	mu      sync.Mutex
	until   time.Time                             // end of the validity so far
	renewal *renewal                              // the last one; nil before the first
	next    time.Time                             // of the next renewal
	forced  bool                                  // it is lost because it was released by force
	by      string                                // who did that, as the masters say
	cause   error                                 // why it has ended: then it is never renewed again; nil while it is held
	derived map[*context.CancelCauseFunc]struct{} // end contexts of WithContext

	scheduled scheduled        // in the keeper's schedule
	whole     []*Lock          // the locks on all keys of the call, if they are several; the first is the caller's
	result    *protocol.Result // of UnlockWith
	unlock    sync.Once
	unlockErr error
	released  bool // by Unlock
}

func newLock(ctx context.Context, a *attempt, c *caller, via Via) *Lock {
	k := &Lock{
		attempt:     a,
		gate:        c.gate,
		caller:      c,
		acquisition: Acquisition{Waited: time.Since(c.began), Position: c.ahead, Via: via, Granted: len(a.granted)},
		next:        renewed(a.start, a.ttl/3, a.ttl),
	}
	if c.maxHold > 0 {
		k.holdEnd = a.start.Add(c.maxHold)
	}
	k.until = k.bounded(a.until())
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return k
}

// since returns when the lock was taken.
func (k *Lock) since() time.Time { return k.caller.began.Add(k.acquisition.Waited) }

// bounded returns the end of a lease, or of the max hold if that is earlier.
func (k *Lock) bounded(end time.Time) time.Time {
	if !k.holdEnd.IsZero() && k.holdEnd.Before(end) {
		return k.holdEnd
	}
	return end
}

// Context returns a context that ends when the lock does. Its cause (see context.Cause) is ErrLost or
// ErrMaxHold if the lock was lost, context.Canceled after Unlock, and ErrClosed if the Locker was closed. It has the
// values of the context given to Lock, but does not end with it: that context bounds the wait for the lock.
func (k *Lock) Context() context.Context { return k.ctx }

// WithContext returns a child of ctx that also ends, with the same cause, when the lock does: before anybody else can have it. Call
// the cancel function when the work is done.
func (k *Lock) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	k.mu.Lock()
	ended := k.cause
	if ended == nil {
		if k.derived == nil {
			k.derived = make(map[*context.CancelCauseFunc]struct{}, 1)
		}
		k.derived[&cancel] = struct{}{}
	}
	k.mu.Unlock()
	if ended != nil {
		cancel(ended)
	}
	return ctx, func() {
		k.mu.Lock()
		delete(k.derived, &cancel)
		k.mu.Unlock()
		cancel(context.Canceled)
	}
}

// Fence returns the lock's fencing token: a number below 2^53 that is larger than that of every lock on the
// key before it. A store that remembers the largest token that it has seen, and refuses writes with smaller ones, is
// safe from the late write of a holder that was paused past its lease
// (https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
func (k *Lock) Fence() uint64 { return uint64(k.attempt.fence) }

// Slot returns which of the n slots of its key the lock has, from 0 to n-1: see WithConcurrency. No other holder has it. Without that it
// is 0. SlotOf is for a lock on several keys.
func (k *Lock) Slot() int { return int(k.attempt.slot) }

// SlotOf is Slot for one of the keys of the lock. It is -1 for a key that is none of them.
func (k *Lock) SlotOf(key string) int {
	for _, part := range k.parts() {
		if part.caller.key == protocol.Key(k.attempt.locker.prefix, key) {
			return part.Slot()
		}
	}
	return -1
}

// Until returns the end of the lock's validity so far: before it no other holder can have the lock. It moves on
// as the lease is renewed. After the lock has ended it means nothing any more.
func (k *Lock) Until() time.Time {
	until := k.ownUntil()
	for _, part := range k.whole {
		if end := part.ownUntil(); end.Before(until) {
			until = end
		}
	}
	return until
}

// ownUntil is Until for this key alone.
func (k *Lock) ownUntil() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until
}

// Acquisition returns how the lock was obtained.
func (k *Lock) Acquisition() Acquisition { return k.acquisition }

// Err returns nil while the lock is held, and afterwards the reason why it is not: ErrLost, ErrMaxHold,
// ErrClosed, or context.Canceled after Unlock.
func (k *Lock) Err() error {
	if err := context.Cause(k.ctx); err != nil {
		return err
	}
	if past(k.Until()) { // its timer is about to say so
		return ErrLost
	}
	return nil
}

// Unlock frees the lock. It takes no context on purpose: it must work after the context of the work has
// ended. It returns as soon as a quorum of the masters has freed the key, and takes at most twice the
// masters' timeout; masters that missed the release get it again in the background until the TTL has passed.
// Further calls do nothing, and return the same error.
//
// The error is nil if the lock was held until now. If the lock had ended before, the work may have overlapped with
// another holder's, and the error says why the lock ended: it matches ErrExpired, and also ErrLost (or ErrMaxHold)
// if this process knew that it was lost, or ErrClosed if Close has freed it. It is ErrExpired or ErrNotOwner alone if
// only the masters knew: the key was gone there, or another holder's. It is a *QuorumError, matching ErrNoQuorum, if
// too few masters confirmed the release: then the lock is free when its TTL is over, at the latest.
func (k *Lock) Unlock() error {
	k.unlock.Do(func() { k.unlockErr = k.release() })
	return k.unlockErr
}

// run calls f under the lock, and releases it, for Do.
func (k *Lock) run(ctx context.Context, f func(context.Context, *Lock) error) (err error) {
	defer func() {
		ended := k.Err()
		if unlockErr := k.Unlock(); ended == nil || ended == context.Canceled { // the latter if f has called Unlock
			ended = unlockErr
		}
		if !errors.Is(ended, ErrNoQuorum) {
			err = errors.Join(err, ended)
		}
	}()
	held, cancel := k.WithContext(ctx)
	defer cancel()
	return f(held, k)
}

// release ends the lock, and releases the keys of the call, for Unlock.
func (k *Lock) release() error {
	unlocks := &k.attempt.locker.unlocks
	if !unlocks.enter() {
		return endedError{k.endedBy()} // Close has released it, unless it was lost
	}
	defer unlocks.leave()
	parts := k.parts()
	for _, part := range parts {
		part.released = part.end(context.Canceled)
	}
	var left []*Lock
	for _, part := range parts {
		if !part.released {
			continue // it was lost before, and its release is on its way
		}
		part.attempt.locker.keeper.reschedule(part, time.Time{})
		part.handOff()
		if len(parts) > 1 {
			left = append(left, part)
		}
	}
	k.attempt.locker.gates.leave(left...)
	k.attempt.sendSoon()
	var err error
	deadline := time.Now().Add(2 * k.attempt.releaseTimeout()) // if another process has begun to wait, a release takes two round trips
	for _, part := range parts {
		if !part.released {
			err = cmp.Or[error](err, endedError{part.endedBy()})
		} else {
			err = cmp.Or(err, part.attempt.confirmRelease(deadline))
		}
	}
	return err
}

// parts returns the locks on all keys of the call.
func (k *Lock) parts() []*Lock {
	if len(k.whole) == 0 {
		return []*Lock{k}
	}
	return k.whole
}

// endedBy returns why the lock has ended; nil while it is held.
func (k *Lock) endedBy() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cause
}

// end ends the lock with this cause: it is not renewed any more, and its contexts have ended. It reports whether it was held until
// now. Only after that may the key be released.
func (k *Lock) end(cause error) bool {
	k.mu.Lock()
	if k.cause != nil {
		k.mu.Unlock()
		return false
	}
	derived := k.derived
	k.cause, k.derived = cause, nil
	k.mu.Unlock()
	k.cancel(cause)
	for cancel := range derived {
		(*cancel)(cause)
	}
	return true
}

// handOff releases the key. If a call of this process waits behind it, one command for each master releases this lock
// and acquires the next. The gates of a lock on several keys are left together, by the caller.
func (k *Lock) handOff() {
	a, l := k.attempt, k.attempt.locker
	if len(k.whole) == 0 {
		if next := l.gates.nextFor(k); next != nil {
			proposal := l.number(next)
			next.turn <- l.newAttempt(next, a, time.Now(), proposal)
			return
		}
	}
	a.replies.expect(protocol.OpRelease, l.decisive())
	if k.result != nil {
		a.releaseWith(k.result, a.replies)
	} else {
		a.release(a.replies, false)
	}
	if len(k.whole) == 0 {
		l.slotEnded(k)
	}
}
