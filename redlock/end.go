package redlock

import (
	"context"
	"errors"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// causeOf returns the cause with which the contexts of a lock end.
func causeOf(e inside.End) error {
	switch e {
	case "":
		return nil
	case inside.EndExpired, inside.EndTaken:
		return ErrLost
	case inside.EndForced:
		return ErrForced
	case inside.EndMaxHold:
		return ErrMaxHold
	case inside.EndClosed:
		return ErrClosed
	}
	return context.Canceled
}

func endOf(released error) inside.End {
	switch {
	case released == nil:
		return inside.EndReleased
	case errors.Is(released, ErrLost):
		return inside.EndGone
	}
	return inside.EndUnconfirmed
}

// howEnded is inside.EndOf.
func (k *Lock) howEnded() inside.End {
	k.expire() // the timer of the lock may be late
	return k.ending()
}

// ending is howEnded without a check of the clock.
func (k *Lock) ending() inside.End {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.how
}

func (k *Lock) endedBy() error { return causeOf(k.ending()) }

// end ends the lock on all its keys, unless it has ended already. The lock ends in the given way or, if its validity is over, in the way that over
// returns. end reports whether this call has ended the lock in the given way. The keeper releases the lock, unless the given way is EndUnconfirmed:
// then the caller must.
func (k *Lock) end(how inside.End) bool {
	really := how
	if over := k.over(); over != "" {
		really = over
	}
	if really == inside.EndUnconfirmed {
		return k.decide(really)
	}
	keeper := k.call.keeper
	keeper.losing.Add(1)
	var lost []*Lock
	if k.decide(really) {
		lost = k.parts()
	}
	keeper.releaseSoon(lost)
	return len(lost) > 0 && really == how
}

// decide sets how the lock has ended, unless that is set already, and reports whether it has set it. From then on the lock isn't renewed, and its
// contexts have ended. Its keys may be released only after that. If decide returns true, its caller makes sure that the lock is released and tell is
// called.
func (k *Lock) decide(how inside.End) bool {
	for _, part := range k.parts() {
		part.mu.Lock()
		if part.how != "" { // the parts are set in order, so the first part shows whether the lock has ended
			part.mu.Unlock()
			return false
		}
		derived := part.derived
		part.how, part.derived = how, nil
		if part.timer != nil {
			part.timer.Stop()
		}
		part.mu.Unlock()
		cause := causeOf(how)
		part.own.cancel(cause)
		for held := range derived {
			held.cancel(cause)
		}
	}
	return true
}

// confirm replaces EndUnconfirmed once the masters have replied to the release.
func (k *Lock) confirm(how inside.End) {
	for _, part := range k.parts() {
		part.mu.Lock()
		part.how = how
		part.mu.Unlock()
	}
}

func (k *Lock) over() inside.End {
	for _, part := range k.parts() {
		part.mu.Lock()
		until, refused := part.until, part.refused
		part.mu.Unlock()
		switch {
		case !vote.Past(until):
		case refused == inside.EndForced:
			return inside.EndForced
		case !part.holdEnd.IsZero() && vote.Past(part.holdEnd):
			return inside.EndMaxHold
		case refused != "":
			return refused
		default:
			return inside.EndExpired
		}
	}
	return ""
}

// tell tells the log and the Observer that the lock was lost, if it was. It is called once for all keys of a lock. why is the error of Unlock, or the
// cause with which the contexts have ended.
func (k *Lock) tell(why error) {
	how, l := k.ending(), k.call
	if !how.Lost() {
		return
	}
	text := "lease lost: another process may now hold this lock while its holder is still working"
	if how == inside.EndGone {
		text = "lease lost, as its release has found: another process may have held this lock while its holder was still working"
	}
	l.logger.Warn(text, k.lastWords(why)...)
	if failure := k.unrenewed(); failure != nil && (how == inside.EndExpired || how == inside.EndTaken || how == inside.EndForced) {
		l.reporter.renewed(failure)
	}
	l.reporter.leaseLost(why)
}
