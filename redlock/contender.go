package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// The pauses between attempts where no master wakes us. A waiter's pause doubles up to waitMost, so that a
// long wait costs the masters little. The pause after split votes is short, and random so that one of the
// callers comes first.
const (
	waitLeast  = 5 * time.Millisecond
	waitMost   = protocol.PollMost
	splitPause = 3 * time.Millisecond
	splitTries = 4
)

// What a call waits for between its attempts, as a tracer is told.
const (
	forOthers        = "others that have taken votes from it: a short time at random"
	forMasters       = "masters that have no vote"
	forSubscriptions = "its subscriptions to wake-ups"
	forWakeUp        = "the wake-up of a master, or the end of a lease"
	forNobody        = "a time, as a master can't wake it"
)

// contender is a call that is at the head of all its gates, and what it remembers between its attempts.
type contender struct {
	locker     *Locker
	callers    []*caller // one for each key
	tries      int
	failure    error         // of the last attempt
	pause      time.Duration // before the next attempt if no master wakes us
	subscribed bool          // counted as one that waits for wake-ups
	insists    time.Time     // until then it keeps its places for all of its keys: see insist
	via        Via
}

// acquire is called at the head of all gates of a call. It makes attempts until the call has the locks on
// all keys at once, or must leave. Between its attempts it waits for one of the keys that were refused, and keeps nobody from the
// others, neither here nor on the masters. first is an attempt that the lock before it has already begun, or nil.
// When wait ends, an attempt that is under way is completed; when ctx ends, it is given up.
func (l *Locker) acquire(ctx context.Context, wait *waitLimit, callers []*caller, first *attempt) (*Lock, error) {
	t := &contender{locker: l, callers: callers, pause: waitLeast, via: ViaFree}
	defer func() {
		if t.subscribed {
			l.subscriptions.done()
		}
	}()
	var room [1]*attempt // enough for one key; saves an allocation
	attempts := room[:0]
	if first != nil {
		t.via = ViaPassed
		attempts = append(attempts, first)
	}
	for {
		if len(attempts) == 0 {
			if slices.ContainsFunc(l.streams, (*link.Stream).Subscribed) {
				l.gates.drainWakeUps(callers) // the attempt finds out what earlier wake-ups announced
			}
			attempts = l.newAttempts(callers, attempts)
		}
		lost := t.win(ctx, attempts)
		if t.tries++; lost == nil {
			for _, a := range attempts {
				t.trace(a, nil, 0, "")
			}
			return t.hold(ctx, attempts), nil
		}
		if done := lost.recall(ctx); done != nil {
			t.trace(lost, done, 0, "")
			l.gates.met(callers[0].gate, done)
			l.gates.keepOnly(nil, callers)
			return nil, done
		}
		err := l.stopped(ctx, t.failure)
		if err == nil && len(callers) > 1 && t.another(attempts, lost) {
			attempts = attempts[:0]
			continue
		}
		if err == nil && t.insist(wait.context(), attempts, lost) {
			attempts = attempts[:0]
			continue
		}
		if err == nil {
			awaited := callers[slices.Index(attempts, lost)]
			l.release(attempts, lost)
			l.gates.keepOnly(awaited, callers)
			t.insists = time.Time{}
			err = t.awaitRetry(wait.context(), lost, awaited)
		}
		if err != nil {
			l.release(attempts)
			l.gates.keepOnly(nil, callers)
			return nil, err
		}
		if len(callers) > 1 {
			if _, err := l.reach(wait, callers, lost); err != nil {
				return nil, err
			}
		}
		attempts = attempts[:0]
	}
}

// release gives back what the attempts of a call have won. If the call waits on, its tickets stay on the keys for which it waits.
func (l *Locker) release(attempts []*attempt, awaited ...*attempt) {
	for _, a := range attempts {
		a.release(nil, slices.Contains(awaited, a))
	}
	attempts[0].sendSoon()
}

// win waits until the attempts have won all keys, within the timeout of one round for the grants and of one
// for the fences, and returns nil; otherwise it returns one of the attempts that are lost. All locks of a
// call get the largest of their fences, so that the call has one fencing token.
func (t *contender) win(ctx context.Context, attempts []*attempt) (lost *attempt) {
	var fence int64
	deadline := time.Now().Add(attempts[0].timeout)
	for _, a := range attempts {
		if lost == nil && !a.win(ctx, deadline) {
			lost = a
		}
		fence = max(fence, a.fence)
	}
	if lost != nil {
		return lost
	}
	for _, a := range attempts {
		a.raise(fence)
	}
	attempts[0].sendSoon()
	deadline = time.Now().Add(attempts[0].timeout)
	allowed := t.locker.heart.allows(ctx, t.locker.closing, deadline, attempts[len(attempts)-1].until())
	for _, a := range attempts {
		if !a.raised(ctx, deadline) || !allowed || past(a.until()) {
			lost = a
		}
	}
	return lost
}

// insist reports whether a call for several keys, which has just met another one, should try again at once. Where such calls want
// overlapping keys, each may win one and give it back, by turns. So one that is refused in favor of another which may be about to give
// the key back, gives back what it has, but keeps its place for all of its keys: the oldest call is granted all, as no younger
// one is granted any of them. As the other one may have won, this lasts for the timeout of a round only: then the call keeps nobody from
// keys that are free.
func (t *contender) insist(ctx context.Context, attempts []*attempt, lost *attempt) bool {
	if !t.subscribed || lost.mustPoll || !slices.ContainsFunc(attempts, (*attempt).metSeveral) {
		return false
	}
	if t.insists.IsZero() {
		t.insists = time.Now().Add(lost.timeout)
	}
	rest := time.Until(t.insists)
	if rest <= 0 {
		return false
	}
	t.locker.release(attempts, attempts...)
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-t.callers[slices.Index(attempts, lost)].wakeUps:
		t.via = ViaWoken
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-t.locker.closing:
	}
	return false
}

// another reports whether a call for several keys, which has lost one, should try again at once, because masters have named another slot
// of that key. Meanwhile it keeps its places, and the next attempt asks for the slots of the other keys that this one has asked for.
func (t *contender) another(attempts []*attempt, lost *attempt) bool {
	gates := &t.locker.gates
	for i, a := range attempts {
		if a != lost {
			gates.stay(t.callers[i])
		}
	}
	c := t.callers[slices.Index(attempts, lost)]
	if !gates.hinted(c, lost.otherSlot()) {
		return false
	}
	t.locker.release(attempts, attempts...)
	t.trace(lost, lost.failure(), 0, forOthers)
	return true
}

// hold makes the locks of attempts that have won, and returns the one that the caller gets.
func (t *contender) hold(ctx context.Context, attempts []*attempt) *Lock {
	l := t.locker
	var room [1]*Lock // enough for one key; saves an allocation
	parts := room[:0]
	for i, a := range attempts {
		parts = append(parts, newLock(ctx, a, t.callers[i], t.via))
	}
	if len(parts) > 1 {
		for _, part := range parts {
			part.whole = parts
		}
	}
	for _, part := range parts { // only now: from here on the lock may end
		if part.caller.slots > 1 {
			part.attempt.withdraw()
		}
		l.gates.noteOutcome(part.caller, part, nil)
		l.keeper.keep(part)
		part.watch()
	}
	attempts[0].sendSoon()
	l.observer.Acquired(parts[0].acquisition)
	return parts[0]
}

// awaitRetry waits until it is time for the next attempt after this one of this caller was lost, or returns the error
// with which the call must leave.
func (t *contender) awaitRetry(ctx context.Context, a *attempt, awaited *caller) error {
	l := t.locker
	t.failure = a.failure()
	t.tellDifference(a, awaited)
	l.gates.noteOutcome(awaited, nil, t.failure)
	if !awaited.several && l.gates.hinted(awaited, a.otherSlot()) {
		t.trace(a, t.failure, 0, forOthers)
		return l.stopped(ctx, t.failure)
	}
	try, sleep, what := t.callers[0].try, jitter(t.pause), forNobody
	var subscribed, wakeUps <-chan struct{}
	switch {
	case try && (t.tries > splitTries || !a.split()): // another holder has won, or nobody can
		t.trace(a, t.failure, 0, "")
		return t.failure
	case try:
		sleep, what = jitter(splitPause), forOthers
	case t.hopeless(ctx, a):
		t.trace(a, t.failure, 0, "")
		return t.failure
	case !errors.Is(t.failure, ErrHeld): // masters have failed, and wake nobody
		t.pause, what = min(2*t.pause, waitMost), forMasters
	case !t.subscribed && awaited.slots > 1 && !a.mustPoll: // all masters that refused have queued the call already
		t.willWait()
		l.subscriptions.begin()
		sleep, what = a.patience(), forWakeUp
	case !t.subscribed:
		// Ask again once the subscriptions are made: what was published before is missed.
		t.willWait()
		l.gates.drainWakeUps(t.callers)
		subscribed, sleep, what = l.subscriptions.begin(), a.timeout, forSubscriptions
	case !a.mustPoll: // all masters that refused have queued this process, and will wake it
		sleep, what = a.patience(), forWakeUp
	default:
		t.pause = min(2*t.pause, waitMost)
	}
	if t.subscribed {
		wakeUps = awaited.wakeUps
	}
	t.trace(a, t.failure, sleep, what)
	timer := time.NewTimer(sleep)
	defer timer.Stop()
	t.via = ViaPolled
	select {
	case <-wakeUps:
		t.via = ViaWoken
	case <-subscribed:
	case <-timer.C:
	case <-ctx.Done():
	case <-l.closing:
	}
	return l.stopped(ctx, t.failure)
}

// willWait notes that the call waits for wake-ups from now on.
func (t *contender) willWait() {
	t.subscribed = true
	for _, c := range t.callers {
		c.polls = true
	}
}

// jitter returns a random pause of d on average.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
