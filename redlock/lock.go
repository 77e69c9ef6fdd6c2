package redlock

import (
	"context"
	"sync"
	"time"
)

// Lock is a lock that is held, until Unlock or until its lease is lost.
type Lock struct {
	attempt *attempt
	ctx     context.Context
	cancel  context.CancelCauseFunc
	expiry  *time.Timer // ends ctx when the lease is over, whatever the masters do

	unlock    sync.Once
	unlockErr error
}

func newLock(ctx context.Context, a *attempt) *Lock {
	k := &Lock{attempt: a}
	k.ctx, k.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	k.expiry = time.AfterFunc(time.Until(a.until()), func() { k.cancel(ErrLost) })
	return k
}

// Context ends when the lock does: with cause ErrLost (see context.Cause) when the lease is over
// before Unlock, with context.Canceled at Unlock, with ErrClosed when the Locker closes. It has the
// values of the context given to Lock, but not its end: that context bounds the wait for the lock.
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

// Until is the end of the lock's validity: before it no other can have the lock. It has a
// monotonic reading.
func (k *Lock) Until() time.Time { return k.attempt.until() }

// Err is nil while the lock is held, and then why it is not: ErrLost, ErrClosed or, after Unlock,
// context.Canceled.
func (k *Lock) Err() error { return context.Cause(k.ctx) }

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
		k.expiry.Stop()
		k.cancel(context.Canceled)
		k.attempt.locker.forget(k)
		k.unlockErr = k.attempt.confirmRelease()
	})
	return k.unlockErr
}

// confirmRelease releases, and waits for the masters' answers until it is clear what they say.
func (a *attempt) confirmRelease() error {
	quorum := a.locker.quorum
	answers := make(chan *call, len(a.calls))
	a.release(answers)
	timer := time.NewTimer(a.timeout)
	defer timer.Stop()

	released, result := 0, error(nil)
	failure := &QuorumError{Quorum: quorum}
	for pending := len(a.calls); pending > 0; {
		select {
		case c := <-answers:
			pending--
			switch {
			case c.Reply.Err != nil:
				failure.Masters = append(failure.Masters, MasterError{a.locker.streams[c.master].master.String(), c.Reply.Err})
			case c.Reply.Status == StatusReleased:
				released++
			case c.Reply.Status == StatusNotOwner:
				result = ErrNotOwner
			case c.Reply.Status == StatusExpired && result == nil:
				result = ErrExpired
			}
		case <-timer.C:
			failure.Answered = released
			failure.Err = errHung
			return failure
		}
		if released >= quorum {
			return nil
		}
		if result != nil && released+len(failure.Masters)+pending < quorum {
			return result // no quorum can have held the key until now
		}
	}
	failure.Answered = released
	return failure
}
