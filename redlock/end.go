package redlock

import (
	"context"
	"errors"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// End says how the hold of a lock has ended. The cause of the lock's contexts, the error of Unlock, the log, the Observer, and packages middleware
// and agent all follow from it. It is empty while the lock is held.
type End string

// The values of End.
const (
	EndReleased    End = "released"    // by Unlock, and the lock was held until then
	EndUnconfirmed End = "unconfirmed" // by Unlock, but too few masters have confirmed so far that the lock was held until then
	EndGone        End = "gone"        // by Unlock, but the masters' replies to the release say that they had lost the lock before
	EndExpired     End = "expired"     // the lock's validity was over, because no quorum had renewed it
	EndTaken       End = "taken"       // the masters refused to renew the lock: others have its key on so many masters that no quorum is left
	EndForced      End = "forced"      // by inspect.Force
	EndMaxHold     End = "max_hold"    // by WithMaxHold
	EndClosed      End = "closed"      // by Close
)

// Lost reports whether another holder may have had the lock before its own holder was done: neither Unlock nor Close has ended it, or Unlock has
// found it lost.
func (e End) Lost() bool { return e == EndGone || errors.Is(e.cause(), ErrLost) }

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

func endOf(released error) End {
	switch {
	case released == nil:
		return EndReleased
	case errors.Is(released, ErrLost):
		return EndGone
	}
	return EndUnconfirmed
}

// End returns how the lock has ended, or "" while it is held. While Unlock waits for the masters, it is EndUnconfirmed.
func (k *Lock) End() End {
	k.expire() // the timer of the lock may be late
	return k.ending()
}

// ending is End without a check of the clock.
func (k *Lock) ending() End {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.how
}

func (k *Lock) endedBy() error { return k.ending().cause() }

// end ends the lock on all its keys, unless it has ended already. The lock ends in the given way or, if its validity is over, in the way that over
// returns. end reports whether this call has ended the lock in the given way. The keeper releases the lock, unless the given way is EndUnconfirmed:
// then the caller must.
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

// decide sets how the lock has ended, unless that is set already, and reports whether it has set it. From then on the lock isn't renewed, and its
// contexts have ended. Its keys may be released only after that. If decide returns true, its caller makes sure that the lock is released and tell is
// called.
func (k *Lock) decide(how End) bool {
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
		cause := how.cause()
		part.own.cancel(cause)
		for held := range derived {
			held.cancel(cause)
		}
	}
	return true
}

// confirm replaces EndUnconfirmed once the masters have replied to the release.
func (k *Lock) confirm(how End) {
	for _, part := range k.parts() {
		part.mu.Lock()
		part.how = how
		part.mu.Unlock()
	}
}

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

// tell tells the log and the Observer that the lock was lost, if it was. It is called once for all keys of a lock. why is the error of Unlock, or the
// cause with which the contexts have ended.
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
		l.reporter.renewed(failure)
	}
	l.reporter.leaseLost(why)
}
