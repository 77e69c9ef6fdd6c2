package redlock

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors of this package, for errors.Is.
var (
	// ErrHeld says that another holder has the lock, or that others were taking it at the same
	// moment. The error is a *HeldError.
	ErrHeld = errors.New("redlock: lock is held")
	// ErrTooManyWaiters says that as many calls as may already wait for the lock in this process; see
	// WithMaxWaiters. The error matches ErrHeld too.
	ErrTooManyWaiters = errors.New("redlock: too many wait for the lock")
	// ErrNoQuorum says that too few masters answered. The error is a *QuorumError.
	ErrNoQuorum = errors.New("redlock: no quorum")
	// ErrLost is the cause with which Lock.Context ends when the lease is over before Unlock.
	ErrLost = errors.New("redlock: lease lost")
	// ErrExpired says, at Unlock, that the lease had ended before.
	ErrExpired = errors.New("redlock: lease expired before unlock")
	// ErrNotOwner says, at Unlock, that the lease had ended before and another holder has the lock.
	ErrNotOwner = errors.New("redlock: lock has another owner")
	// ErrRestarted says that a master has just started, and has no vote until the leases that it
	// may have forgotten are over; see WithRestartGuard.
	ErrRestarted = errors.New("redlock: master has restarted")
	// ErrMaxHold is the cause with which Lock.Context ends when the lock was held for its max hold.
	// It matches ErrLost.
	ErrMaxHold = fmt.Errorf("%w: held for its max hold", ErrLost)
	// ErrClosed says that the Locker is closed.
	ErrClosed = errors.New("redlock: locker is closed")
)

// HeldError says that the lock is held by another. It matches ErrHeld, and the context's error
// where Lock waited until its context ended.
type HeldError struct {
	// RetryAfter is the longest time that the holder's lease can still last if it isn't renewed.
	RetryAfter time.Duration
	// Err is the error of the context that ended the wait, ErrTooManyWaiters, or nil.
	Err error
}

func (e *HeldError) Error() string {
	return withCause(ErrHeld.Error(), e.Err)
}

// Unwrap makes errors.Is find ErrHeld and the context's error.
func (e *HeldError) Unwrap() []error { return withSentinel(ErrHeld, e.Err) }

// QuorumError says that too few masters answered. It matches ErrNoQuorum, and the context's error
// where Lock waited until its context ended.
type QuorumError struct {
	Answered int           // masters that answered
	Quorum   int           // answers needed
	Masters  []MasterError // those that did not, and why
	// RetryAfter is when enough masters are through their restart guard; 0 where it isn't for that.
	RetryAfter time.Duration
	Err        error // the error of the context that ended the wait, or nil
}

func (e *QuorumError) Error() string {
	text := fmt.Sprintf("%v: %d of %d needed masters answered", ErrNoQuorum, e.Answered, e.Quorum)
	why := make([]string, len(e.Masters))
	for i, m := range e.Masters {
		why[i] = m.Error()
	}
	if len(why) > 0 {
		text += ": " + strings.Join(why, "; ")
	}
	return withCause(text, e.Err)
}

// Unwrap makes errors.Is find ErrNoQuorum, the masters' errors and the context's error.
func (e *QuorumError) Unwrap() []error {
	errs := withSentinel(ErrNoQuorum, e.Err)
	for _, m := range e.Masters {
		errs = append(errs, m)
	}
	return errs
}

// MasterError is one master's failure.
type MasterError struct {
	Master string // the master's name, without credentials
	Err    error
}

func (e MasterError) Error() string { return e.Master + ": " + e.Err.Error() }

// Unwrap gives the master's own error.
func (e MasterError) Unwrap() error { return e.Err }

func withCause(text string, cause error) string {
	if cause != nil {
		text += " (" + cause.Error() + ")"
	}
	return text
}

func withSentinel(sentinel, cause error) []error {
	if cause == nil {
		return []error{sentinel}
	}
	return []error{sentinel, cause}
}
