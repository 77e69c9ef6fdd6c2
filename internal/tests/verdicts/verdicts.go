// Package verdicts says what each door to the lock tells of an error: the library, a rule, the agent, redlock run and the agent's clients.
// TestVerdicts of package redlock goes through the situations that lead to these errors. Only tests use it.
package verdicts

import (
	"errors"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Verdict is what the doors tell of one situation.
type Verdict struct {
	Seen    string
	Err     func(cause error) error // of package redlock, if the wait has ended for this cause, or for none
	Status  int                     // of a rule without settings, and of the agent
	Outcome string                  // in the header Redlock-Outcome
	Exit    int                     // of redlock run
	Client  string                  // the error of the agent's clients
}

// All has all verdicts. A request may be served without its lock (on_no_quorum pass) for one reason only: masters don't vote.
var All = []Verdict{
	{"others leave it too few masters", held, 423, "held", 75, "LockHeld"},
	{"as many wait here as may", func(error) error { return redlock.ErrTooManyWaiters }, 503, "too_many_waiters", 69, "LockUnavailable"},
	{"too few masters vote", func(cause error) error { return &redlock.QuorumError{Err: cause} }, 409, "no_quorum", 69, "LockUnavailable"},
	{"a result, which can't be read", with(redlock.ErrUnreadable), 503, "unreadable", 69, "LockUnavailable"},
	{"nothing: nobody was asked in time", with(redlock.ErrBusy), 503, "failed", 69, "LockUnavailable"},
	{"nothing: the Locker is closed", with(redlock.ErrClosed), 503, "failed", 69, "LockUnavailable"},
}

func held(cause error) error { return &redlock.HeldError{Err: cause} }

func with(err error) func(error) error {
	return func(cause error) error { return errors.Join(err, cause) }
}
