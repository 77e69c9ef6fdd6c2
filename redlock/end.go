package redlock

import (
	"context"
	"errors"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// End is how the hold of a lock has ended. It is decided once, and all that is told of that follows from it: the cause of the lock's
// contexts, the error of Unlock, the log, the Observer, and what packages middleware and agent say. It is empty while the lock is held.
type End string

// The values of End.
const (
	EndReleased    End = "released"    // by Unlock, and it was held until then
	EndUnconfirmed End = "unconfirmed" // by Unlock, and too few masters have said, so far, that it was held until then
	EndGone        End = "gone"        // by Unlock, but the masters had lost it before, as their replies to the release say
	EndExpired     End = "expired"     // its validity was over: no quorum had renewed it
	EndTaken       End = "taken"       // the masters have refused to renew it: others have its key on so many that no quorum was left
	EndForced      End = "forced"      // by ForceUnlock
	EndMaxHold     End = "max_hold"    // by WithMaxHold
	EndClosed      End = "closed"      // by Close
)

// Lost reports whether another holder may have had the lock before its own was done: it has ended otherwise than by Unlock or Close, or
// Unlock has found that it had.
func (e End) Lost() bool { return e == EndGone || errors.Is(e.cause(), ErrLost) }

// cause is why the lock's contexts have ended; nil while it is held.
func (e End) cause() error {
	switch e {
	case "":
		return nil
	case EndExpired, EndTaken:
		return ErrLost
	case EndForced:
		return ErrForced
	case EndMaxHold:
		return ErrMaxHold
	case EndClosed:
		return ErrClosed
	}
	return context.Canceled
}

// endOf returns how a lock has ended by the error of its release.
func endOf(released error) End {
	switch {
	case released == nil:
		return EndReleased
	case errors.Is(released, ErrLost):
		return EndGone
	}
	return EndUnconfirmed
}

// End returns how the lock has ended, or nothing while it is held. While Unlock waits for the masters, that is EndUnconfirmed.
func (k *Lock) End() End {
	k.expire() // its timer may be late
	return k.ending()
}

// ending is End, without a look at the clock.
func (k *Lock) ending() End {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.how
}

// endedBy returns why the lock has ended; nil while it is held.
func (k *Lock) endedBy() error { return k.ending().cause() }

// end ends the lock, on all its keys, unless it has ended: in this way or, if its validity is over, in the way that this is. It reports
// whether it has ended in this way now. A lock that is lost is released by the keeper, and one that isn't by the caller.
func (k *Lock) end(how End) bool {
	really := how
	if over := k.over(); over != "" {
		really = over
	}
	if really == EndUnconfirmed {
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

// decide says how the lock has ended, unless that is said: it is not renewed any more, and its contexts have ended. Only after that may its
// keys be released. It reports whether the lock has ended now: whoever is told so, and nobody else, has the lock released, and calls tell.
func (k *Lock) decide(how End) bool {
	for _, part := range k.parts() {
		part.mu.Lock()
		if part.how != "" { // which the first part has, if any
			part.mu.Unlock()
			return false
		}
		derived := part.derived
		part.how, part.derived = how, nil
		if part.timer != nil {
			part.timer.Stop()
		}
		part.mu.Unlock()
		cause := how.cause()
		part.own.cancel(cause)
		for held := range derived {
			held.cancel(cause)
		}
	}
	return true
}

// confirm decides, by the masters' replies to the release, how a lock has ended that Unlock has ended.
func (k *Lock) confirm(how End) {
	for _, part := range k.parts() {
		part.mu.Lock()
		part.how = how
		part.mu.Unlock()
	}
}

// over returns in what way the validity of the lock is over, on any of its keys; nothing while it isn't.
func (k *Lock) over() End {
	for _, part := range k.parts() {
		part.mu.Lock()
		until, refused := part.until, part.refused
		part.mu.Unlock()
		switch {
		case !vote.Past(until):
		case refused == EndForced:
			return EndForced
		case !part.holdEnd.IsZero() && vote.Past(part.holdEnd):
			return EndMaxHold
		case refused != "":
			return refused
		default:
			return EndExpired
		}
	}
	return ""
}

// tell tells the log and the Observer that the lock was lost, if it was: once for all its keys. why is what Unlock says of that.
func (k *Lock) tell(why error) {
	how, l := k.ending(), k.call
	if !how.Lost() {
		return
	}
	text := "lease lost: another process may now hold this lock while its holder is still working"
	if how == EndGone {
		text = "lease lost, as its release has found: another process may have held this lock while its holder was still working"
	}
	l.logger.Warn(text, k.lastWords(why)...)
	if failure := k.unrenewed(); failure != nil && (how == EndExpired || how == EndTaken || how == EndForced) {
		l.told.renewed(failure)
	}
	l.told.leaseLost(why)
}
