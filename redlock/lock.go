package redlock

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Lock is a lock that is held, until Unlock or until it is lost. Its lease is renewed meanwhile.
type Lock struct {
	attempt *attempt
	gate    *gate
	wait    Wait
	ctx     context.Context
	cancel  context.CancelCauseFunc
	holdEnd time.Time // when it is lost although it could be renewed

	mu      sync.Mutex
	until   time.Time // end of the validity so far
	renewal *renewal  // the last one; nil before the first
	next    time.Time // of the next renewal
	ended   bool      // unlocked or lost: it is never renewed again

	kept      kept    // in the keeper's schedule
	whole     []*Lock // the locks on all keys of the call, if they are several; the first is the caller's
	unlock    sync.Once
	unlockErr error
}

func newLock(ctx context.Context, a *attempt, c *caller, how Came) *Lock {
	k := &Lock{
		attempt: a,
		gate:    c.gate,
		wait:    Wait{Duration: time.Since(c.came), Position: c.ahead, Came: how},
		holdEnd: a.start.Add(c.maxHold),
		until:   earlier(a.until(), a.start.Add(c.maxHold)),
		next:    renewed(a.start, a.ttl/3, a.ttl),
	}
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return k
}

// Context ends when the lock does: with cause ErrLost or ErrMaxHold (see context.Cause) when it is
// lost, with context.Canceled at Unlock, with ErrClosed when the Locker closes. It has the values of
// the context given to Lock, but not its end: that context bounds the wait for the lock.
func (k *Lock) Context() context.Context { return k.ctx }

// WithContext gives a child of ctx that also ends, with the same cause, when the lock does. Call
// the cancel function when the work is done.
func (k *Lock) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(k.ctx, func() { cancel(context.Cause(k.ctx)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// Fence is the lock's fencing token: below 2^53, and larger than that of every lock on the key
// before it. A store that remembers the largest that it has seen, and refuses smaller ones, is safe
// from the late write of a holder that was paused past its lease
// (https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
func (k *Lock) Fence() uint64 { return uint64(k.attempt.fence) }

// Until is the end of the lock's validity so far: before it no other can have the lock. It moves on
// as the lease is renewed.
func (k *Lock) Until() time.Time {
	until := k.ownUntil()
	for _, part := range k.whole {
		until = earlier(until, part.ownUntil())
	}
	return until
}

// ownUntil is that of this key alone.
func (k *Lock) ownUntil() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until
}

// Wait tells how the lock was come by.
func (k *Lock) Wait() Wait { return k.wait }

// Err is nil while the lock is held, and then why it is not: ErrLost or ErrMaxHold, ErrClosed or,
// after Unlock, context.Canceled.
func (k *Lock) Err() error {
	if err := context.Cause(k.ctx); err != nil {
		return err
	}
	if past(k.Until()) { // the keeper is about to say so
		return ErrLost
	}
	return nil
}

// Unlock frees the lock. It takes no context on purpose: it must run after the work's context has
// ended. It returns as soon as a quorum of the masters has freed the key, and takes at most the
// masters' timeout; masters that missed it get it again in the background until the TTL has passed.
//
// The error is nil if the lock was held until now. It is ErrExpired or ErrNotOwner if the lease had
// ended before, so that the work may have overlapped with another's. It is a *QuorumError, matching
// ErrNoQuorum, if too few masters confirmed: the lock is free at the latest when its TTL is over.
// Further calls do nothing and return the same.
func (k *Lock) Unlock() error {
	k.unlock.Do(func() {
		if len(k.whole) == 0 {
			k.unlockErr = k.free()
			return
		}
		errs := make([]error, len(k.whole))
		var all sync.WaitGroup
		for i, part := range k.whole {
			all.Go(func() { errs[i] = part.free() })
		}
		all.Wait()
		k.unlockErr = cmp.Or(errs...)
	})
	return k.unlockErr
}

func (k *Lock) free() error {
	if !k.end() {
		return ErrExpired // lost before; the release is on its way
	}
	k.cancel(context.Canceled)
	k.attempt.locker.keeper.forget(k)
	return k.hand()
}

// end ends the lock: it isn't renewed any more. It is false if it had ended before.
func (k *Lock) end() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	first := !k.ended
	k.ended = true
	return first
}

// hand passes the lock on to the call that waits behind it, by commands that release it and acquire the
// next in one; or frees it if nobody does.
func (k *Lock) hand() error {
	a, l := k.attempt, k.attempt.locker
	next := l.gates.next(k.gate)
	if next != nil && !next.several {
		next.turn <- l.newAttempt(next, a)
		return a.confirmRelease()
	}
	a.answers.expect(OpRelease, l.decisive())
	a.release(a.answers, false)
	if next != nil {
		next.turn <- nil
	} else {
		l.gates.leave(k.gate)
	}
	return a.confirmRelease()
}

// lose ends the lock with this cause, before Unlock, on all keys: it is released, and the next call may
// try. It is false if it had ended before.
func (k *Lock) lose(cause error) bool {
	first := k.end()
	if first {
		l := k.attempt.locker
		l.keeper.forget(k)
		k.attempt.release(nil, false)
		l.gates.leave(k.gate)
		k.cancel(cause)
		for _, part := range k.whole {
			part.lose(cause)
		}
	}
	return first
}

// confirmRelease waits for the masters' answers to a release until it is clear what they say.
func (a *attempt) confirmRelease() error {
	quorum := a.locker.quorum
	released, result := 0, error(nil)
	var failed []MasterError
	ending := a.collect(context.Background(), nil, a.answers, len(a.calls), func(c *call, pending int) (done bool) {
		switch {
		case c.Reply.Err != nil:
			failed = append(failed, MasterError{a.locker.streams[c.master].master.String(), c.Reply.Err})
		case c.Reply.Status == StatusReleased:
			released++
		case c.Reply.Status == StatusNotOwner:
			result = ErrNotOwner
		case c.Reply.Status == StatusExpired && result == nil:
			result = ErrExpired
		}
		// no quorum can have held the key until now
		expired := result != nil && released+len(failed)+pending < quorum
		return released >= quorum || expired
	})
	switch {
	case released >= quorum:
		return nil
	case ending == timeOver:
		return &QuorumError{Answered: released, Quorum: quorum, Masters: failed, Err: errHung}
	case result != nil && released+len(failed) < quorum:
		return result
	}
	return &QuorumError{Answered: released, Quorum: quorum, Masters: failed}
}
