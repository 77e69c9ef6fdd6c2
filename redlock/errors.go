package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// The errors of this package, for errors.Is. Several of them can match one error.
var (
	// ErrHeld means that another holder has the lock, or that several callers were taking it at the same moment. Masters that failed aren't the
	// reason: with their votes, the call would not have had a quorum either. The error is a *HeldError.
	ErrHeld = errors.New("redlock: lock is held")
	// ErrDone means that a result is remembered for the key. The error is a *DoneError; only calls with WithRecall
	// or WithOncePer return it.
	ErrDone = errors.New("redlock: the work is done")
	// ErrUnreadable means that some master remembers a result for the key, but it could not be read, or handed to a quorum: masters don't answer, too
	// many results are under way, or the network is slow. Don't do the work again because of this error: a later call reads the result, or finds that
	// it is gone. The text names the masters that failed. The error also matches the one that ended the wait, but never ErrNoQuorum. Only calls with
	// WithRecall return it.
	ErrUnreadable = errors.New("redlock: the work is done, as far as is known, but its result can't be read now")
	// ErrNotRemembered is the error of inspect.Forget if no result is remembered for the key. Once, OncePer, UnlockWith and UnlockDone return it if
	// the work was done, but no quorum of the masters has confirmed that it remembers the work.
	ErrNotRemembered = errors.New("redlock: no result is remembered for the key")
	// ErrNoRoom means that a result was not stored, because too many others were being stored or read for 10 seconds.
	ErrNoRoom = errors.New("redlock: the result found no room")
	// ErrTooManyWaiters means that as many calls as WithMaxWaiters allows already wait for the lock in this process, so that this call did not wait at
	// all. It doesn't match ErrHeld, with which a wait ends. If those calls wait for masters, the error is a *QuorumError.
	ErrTooManyWaiters = errors.New("redlock: too many wait for the lock")
	// ErrNotWoken means that a call can't wait for the lock: the masters' users lack the right to SUBSCRIBE, so that no quorum could wake it. The
	// error is a *HeldError, and matches ErrHeld too.
	ErrNotWoken = errors.New("redlock: the masters deny SUBSCRIBE, and so can't wake a call that waits: grant this process's user +subscribe, and &<prefix>:wake:*")
	// ErrBusy means that a call's wait was over before it could ask the masters: this process asks for more locks than the masters grant in this
	// time. Whether anybody has the lock isn't known.
	ErrBusy = errors.New("redlock: too many calls ask for locks at once, and the wait was over before this one's turn")
	// ErrHeldByCaller means that a call would wait for itself: it was made with the context of work under the lock, or with a child of that context.
	// Do, Lock.Context and middlewares give such contexts. Locks are not reentrant. The error is a *HeldError, and matches ErrHeld, too.
	ErrHeldByCaller = errors.New("redlock: the caller itself holds the lock, and would wait for itself")
	// ErrConcurrency means that WithConcurrency allows several holders for a call that needs a single one: with WithRecall, WithOncePer or Once, or
	// for the result of UnlockWith.
	ErrConcurrency = errors.New("redlock: the concurrency is above 1")
	// ErrKeyTooLong means that a key has more than MaxKeyLength bytes, or that the keys of a call have too many together.
	ErrKeyTooLong = errors.New("redlock: key is too long")
	// ErrNoQuorum means that too few masters gave a vote. It doesn't show whether anybody has the lock. The error is a *QuorumError.
	ErrNoQuorum = errors.New("redlock: no quorum")
	// ErrLost is the cause with which Lock.Context ends when the lease is over before Unlock. Unlock returns it as well, even if only the masters'
	// replies show that the lock was lost.
	ErrLost = errors.New("redlock: lease lost")
	// ErrMaxHold is ErrLost for a lock that was held for as long as WithMaxHold allows. It matches ErrLost.
	ErrMaxHold = fmt.Errorf("%w: held for its max hold", ErrLost)
	// ErrForced is ErrLost for a lock that somebody has released by force: see package inspect. It matches ErrLost.
	ErrForced = fmt.Errorf("%w: released by force", ErrLost)
	// ErrClosed means that the Locker is closed. If Close frees a lock, ErrClosed is also the cause with which the lock's contexts end.
	ErrClosed = link.ErrClosed
	// ErrExpired is the error of Unlock if the lock had ended before, for any reason. The work may have overlapped with another holder's. The error
	// also matches the reason for the end: ErrLost, ErrMaxHold, ErrForced or ErrClosed.
	ErrExpired = errors.New("redlock: lease expired before unlock")
	// ErrNotOwner is the error of Unlock, in place of ErrExpired, if the masters say that another holder has the lock now. It matches ErrLost.
	ErrNotOwner = errors.New("redlock: lock has another owner")
	// ErrRestarted means that a master has just started, and may have forgotten leases. The master has no vote until all of these leases have ended;
	// see WithRestartGuard.
	ErrRestarted = admission.ErrRestarted
	// ErrReplaced means that a different server answers under a master's name, as after a failover, or that the server has just been a replica or has
	// lost its data. The server has no vote until all earlier leases have ended. The error matches ErrRestarted, because the effect on locks is the
	// same.
	ErrReplaced = admission.ErrReplaced
)

// HeldError is the error of a call that did not get the lock because another holder has it. It matches
// ErrHeld, and the error that ended the wait.
type HeldError struct {
	// RetryAfter is how long the holder's lease can still last, at most, if it is not renewed; 0 if unknown.
	RetryAfter time.Duration
	// Slots is how many calls may hold the key at once, as this call sees it: see WithConcurrency. All slots are taken, or other calls are next.
	Slots int
	// Label is the label of the call: see WithLabel. No error names a key.
	Label string
	// Err is the reason why the call did not wait any longer: the context's error, context.DeadlineExceeded when the time of WithWait was over,
	// ErrNotWoken or ErrHeldByCaller. It is nil for a call that does not wait.
	Err error
}

func (e *HeldError) Error() string {
	text := withLabel(ErrHeld, e.Label)
	if e.Slots > 1 {
		text += fmt.Sprintf(": all %d slots are taken", e.Slots)
	}
	return withCause(text, e.Err)
}

// Unwrap returns ErrHeld and Err.
func (e *HeldError) Unwrap() []error { return withSentinel(ErrHeld, e.Err) }

// QuorumError is the error of a call for which too few masters voted: they do not answer, have no vote for
// now, or answered too late. It matches ErrNoQuorum, the errors of the masters, and the error that ended the wait.
type QuorumError struct {
	// Answered is the number of masters whose replies were counted, whether they granted or refused. In an error of Unlock it is the number of
	// masters that confirmed the release. More masters may work, because a call stops waiting once it is certain that no quorum can be reached.
	Answered int
	// Quorum is the number of votes needed.
	Quorum int
	// Total is the number of masters; 0 if this process may not lock at all, whatever the masters answer.
	Total int
	// Masters are the masters that failed, each with the reason. Masters for which the call didn't wait are missing.
	Masters []*MasterError
	// RetryAfter is how long it takes until enough masters will have passed their restart guards; 0 if the guards aren't the reason.
	RetryAfter time.Duration
	Label      string // the label of the call: see WithLabel
	// Err is the reason for the end of the call, if it isn't in the masters' replies: the context's error, context.DeadlineExceeded when the time of
	// WithWait was over, ErrTooManyWaiters, the reason why this process may not lock, or, from Unlock, that masters hang. It is nil otherwise.
	Err error
}

func (e *QuorumError) Error() string {
	text := withLabel(ErrNoQuorum, e.Label)
	switch usable := e.Total - len(e.Masters); {
	case e.Total == 0:
	case usable < e.Quorum:
		text += fmt.Sprintf(": %d of %d masters usable, %d needed", usable, e.Total, e.Quorum)
	case e.Answered < e.Quorum:
		text += fmt.Sprintf(": %d of %d masters answered in time, %d needed", e.Answered, e.Total, e.Quorum)
	default:
		text += ": a majority answered, but too late, or not all for this call"
	}
	why := make([]string, len(e.Masters))
	for i, m := range e.Masters {
		why[i] = m.Error()
	}
	if len(why) > 0 {
		text += ": " + strings.Join(why, "; ")
	}
	return withCause(text, e.Err)
}

// Unwrap returns ErrNoQuorum, Err, and the errors of the masters.
func (e *QuorumError) Unwrap() []error {
	errs := withSentinel(ErrNoQuorum, e.Err)
	for _, m := range e.Masters {
		errs = append(errs, m)
	}
	return errs
}

// unreadableError is the error of a call with WithRecall that has met a result on some master, but could not read it, or could not make sure that a
// quorum remembers it: see ErrUnreadable.
type unreadableError struct {
	// Masters are the masters that failed, each with the reason.
	Masters []*MasterError
	Label   string // the label of the call: see WithLabel
	// Err is the reason for the end of the call, if it isn't in the masters' replies: see QuorumError.
	Err error

	key string // whose result it is: see call.wants
}

func (e *unreadableError) Error() string {
	text := withLabel(ErrUnreadable, e.Label)
	for i, m := range e.Masters {
		if i == 0 {
			text += ": " + m.Error()
		} else {
			text += "; " + m.Error()
		}
	}
	return withCause(text, e.Err)
}

// Unwrap returns ErrUnreadable and Err.
func (e *unreadableError) Unwrap() []error { return withSentinel(ErrUnreadable, e.Err) }

// MasterError is the reason why one master gave no vote.
type MasterError struct {
	Master string // the master's name, without credentials
	Err    error
}

func (e *MasterError) Error() string { return e.Master + ": " + inner(e.Err) }

// Unwrap returns the master's own error.
func (e *MasterError) Unwrap() error { return e.Err }

func noQuorum(m *vote.Masters, v vote.Verdict) *QuorumError {
	return &QuorumError{Answered: v.Answered, Quorum: m.Quorum, Total: v.Total, Masters: masterErrors(v.Failed), RetryAfter: m.GuardsOver(v.Failed)}
}

// unreleased returns the error of a release, or nil if a quorum has confirmed it.
func unreleased(m *vote.Masters, r vote.Released) error {
	switch {
	case r.Unconfirmed != nil:
		err := noQuorum(m, *r.Unconfirmed)
		if r.Hung {
			err.Err = link.ErrHung
		}
		return err
	case r.Gone == protocol.StatusNotOwner:
		return becauseError{ErrLost, ErrNotOwner}
	case r.Gone != protocol.StatusNone:
		return becauseError{ErrLost, ErrExpired}
	}
	return nil
}

func masterErrors(failed []vote.Failure) (errs []*MasterError) {
	for _, f := range failed {
		errs = append(errs, &MasterError{f.Master, f.Err})
	}
	return errs
}

// endedError is the error of Unlock for a lock that had ended before. Its text is the text of the cause.
type endedError struct{ cause error }

func (e endedError) Error() string { return e.cause.Error() }

func (e endedError) Unwrap() []error { return []error{e.cause, ErrExpired} }

// ended returns the error of a call whose context has ended. If the call has made an attempt, that attempt's error is joined with the context's.
func ended(ctx context.Context, failure error) error {
	return endedBy(ctx.Err(), failure)
}

func endedBy(cause, failure error) error {
	var held *HeldError
	var quorum *QuorumError
	var unreadable *unreadableError
	switch {
	case errors.As(failure, &unreadable):
		return &unreadableError{Masters: unreadable.Masters, Err: cause, key: unreadable.key}
	case errors.As(failure, &held):
		return &HeldError{RetryAfter: held.RetryAfter, Slots: held.Slots, Err: cause}
	case errors.As(failure, &quorum):
		late := *quorum
		late.Err = cause
		return &late
	case failure == ErrBusy:
		return becauseError{ErrBusy, cause}
	}
	return fmt.Errorf("redlock: %w", cause)
}

func withCause(text string, cause error) string {
	if cause != nil {
		text += " (" + inner(cause) + ")"
	}
	return text
}

// inner returns the text of an error, without the package's name, for use in another error of this package.
func inner(err error) string { return strings.ReplaceAll(err.Error(), "redlock: ", "") }

type becauseError struct{ error, cause error }

func (e becauseError) Error() string { return e.error.Error() + ": " + inner(e.cause) }

func (e becauseError) Unwrap() []error { return []error{e.error, e.cause} }

func withLabel(sentinel error, label string) string {
	if label == "" {
		return sentinel.Error()
	}
	return sentinel.Error() + " [" + label + "]"
}

// labeled returns a copy of a call's error with the call's label. It copies the error because several calls may have got the same one.
func labeled(err error, label string) error {
	if label == "" {
		return err
	}
	switch e := err.(type) {
	case *HeldError:
		own := *e
		own.Label = label
		return &own
	case *QuorumError:
		own := *e
		own.Label = label
		return &own
	case *unreadableError:
		own := *e
		own.Label = label
		return &own
	}
	if err == ErrTooManyWaiters {
		return fmt.Errorf("%w [%s]", err, label)
	}
	return err
}

func withSentinel(sentinel, cause error) []error {
	if cause == nil {
		return []error{sentinel}
	}
	return []error{sentinel, cause}
}
