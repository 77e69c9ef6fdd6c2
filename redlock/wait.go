package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Wait tells how a lock was come by.
type Wait struct {
	Duration time.Duration // from the call until the lock was had
	Position int           // calls for the key in this process that were there before
	Came     Came
}

// Came says how a call's turn came.
type Came string

// The ways.
const (
	CameFree   Came = "free"   // the first attempt had it
	CamePassed Came = "passed" // from the lock before, in the same process
	CameWoken  Came = "woken"  // a master told that the key was free
	CamePolled Came = "polled" // it was found free: its holder had died, or a wake-up was lost
)

// The pauses between attempts where no master wakes us. A waiter's grow to waitMost, so that a long
// wait costs the masters little; those after split votes are short, and random so that one caller comes
// first.
const (
	waitLeast  = 5 * time.Millisecond
	waitMost   = 100 * time.Millisecond
	splitPause = 3 * time.Millisecond
	splitTries = 4
)

func (l *Locker) lock(ctx context.Context, keys []string, opts []LockOption, try bool) (*Lock, error) {
	o, err := l.with(opts)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 || slices.Contains(keys, "") {
		return nil, errors.New("redlock: key is empty")
	}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.calls.Done()
	if ctx.Err() != nil {
		return nil, ended(ctx, nil)
	}
	var first *attempt
	var room [1]*caller // for most
	callers := room[:0]
	came, clock := time.Now(), l.clock()
	for _, key := range keys {
		c := &caller{lockOptions: o, key: l.prefix + ":{" + key + "}", try: try, several: len(keys) > 1, came: came}
		if first, err = l.reach(ctx, c, clock); err != nil {
			l.leave(callers)
			return nil, err
		}
		callers = append(callers, c)
	}
	return l.acquire(ctx, callers, first)
}

// reach waits until the call is the head of its gate. The lock before it may have begun an attempt.
func (l *Locker) reach(ctx context.Context, c *caller, clock int64) (*attempt, error) {
	for {
		head, later, err := l.gates.enter(c, clock)
		switch {
		case err != nil:
			return nil, err
		case head:
			return nil, nil
		case !c.try:
			return l.standInLine(ctx, c)
		}
		select {
		case <-later:
		case <-ctx.Done():
			return nil, ended(ctx, nil)
		case <-l.closing:
			return nil, ErrClosed
		}
	}
}

func (l *Locker) standInLine(ctx context.Context, c *caller) (*attempt, error) {
	var err error
	select {
	case a := <-c.turn:
		return a, nil
	case <-ctx.Done():
		err = ended(ctx, l.gates.held(c.gate))
	case <-l.closing:
		err = ErrClosed
	}
	if !l.gates.giveUp(c) { // its turn has just come
		if a := <-c.turn; a != nil {
			a.release(nil, false)
		}
		l.gates.leave(c.gate)
	}
	return nil, err
}

// leave has the next calls be the heads of these gates.
func (l *Locker) leave(callers []*caller) {
	for _, c := range callers {
		l.gates.leave(c.gate)
	}
}

// acquire is for the heads of gates: the call tries until it has the locks on all keys at once, or
// leaves. The lock before it may have begun the first attempt.
func (l *Locker) acquire(ctx context.Context, callers []*caller, first *attempt) (*Lock, error) {
	h := &head{locker: l, callers: callers, pause: waitLeast, came: CameFree}
	defer h.close()
	var room [1]*attempt // for most
	attempts := room[:0]
	if first != nil {
		h.came = CamePassed
		attempts = append(attempts, first)
	}
	for {
		if len(attempts) == 0 {
			if l.ears.hear() {
				l.gates.calm(callers) // what was said before is known soon
			}
			for _, c := range callers {
				attempts = append(attempts, l.newAttempt(c, nil))
			}
		}
		lost := h.win(ctx, attempts)
		if lost == nil {
			return h.hold(ctx, attempts), nil
		}
		err := l.stopped(ctx, h.failure)
		if err == nil {
			for _, a := range attempts {
				a.release(nil, true)
			}
			err = h.rest(ctx, lost)
		}
		if err != nil {
			for _, a := range attempts {
				a.release(nil, false)
			}
			l.leave(callers)
			return nil, err
		}
		attempts = attempts[:0]
	}
}

// win collects the votes for all keys, and gives an attempt that is lost, or nil. All locks of a call
// have the same fence: the largest.
func (h *head) win(ctx context.Context, attempts []*attempt) (lost *attempt) {
	var fence int64
	for _, a := range attempts {
		if !a.win(ctx) {
			lost = a
		}
		fence = max(fence, a.fence)
		h.queued = h.queued || a.queuedAnywhere()
	}
	for _, a := range attempts {
		if h.queued { // also where this attempt hasn't been sent
			a.touched.Store(true)
		}
		if lost == nil && a.fence < fence {
			a.fence = fence
			if !a.raise(ctx) || past(a.until()) {
				lost = a
			}
		}
	}
	return lost
}

// hold makes the lock of attempts that are won.
func (h *head) hold(ctx context.Context, attempts []*attempt) *Lock {
	l := h.locker
	var room [1]*Lock // for most
	parts := room[:0]
	for i, a := range attempts {
		parts = append(parts, newLock(ctx, a, h.callers[i], h.came))
		l.gates.outcome(parts[i].gate, parts[i], nil)
	}
	if len(parts) > 1 {
		for _, part := range parts {
			part.whole = parts
		}
	}
	for _, part := range parts { // from now on it may be lost
		l.keeper.keep(part)
	}
	l.observer.Acquired(parts[0].wait)
	return parts[0]
}

// stopped says why a call must leave, or nil.
func (l *Locker) stopped(ctx context.Context, failure error) error {
	select {
	case <-l.closing:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx, failure)
	default:
		return nil
	}
}

// head is a call at the head of its gates, between its attempts.
type head struct {
	locker    *Locker
	callers   []*caller // one for each key
	tries     int
	failure   error         // of the last attempt
	pause     time.Duration // before the next, where no master wakes us
	queued    bool          // the call may be in a master's queue
	listening bool
	came      Came
}

// rest waits until it is time for another attempt, after this one was lost. An error says that there is
// none.
func (h *head) rest(ctx context.Context, a *attempt) error {
	l := h.locker
	h.tries++
	h.failure = a.failure()
	for _, c := range h.callers {
		l.gates.outcome(c.gate, nil, h.failure)
	}
	l.compareTerms(a)

	try, rest := h.callers[0].try, jitter(h.pause)
	var listens, woken <-chan struct{}
	switch {
	case try && (h.tries > splitTries || !a.split()):
		return h.failure
	case try:
		rest = jitter(splitPause)
	case !errors.Is(h.failure, ErrHeld):
		h.pause = min(2*h.pause, waitMost)
	case !h.listening:
		h.listening = true
		l.gates.calm(h.callers)
		listens, rest = l.ears.open(), a.timeout
	case !a.deaf:
		rest = a.patience()
	default: // not all masters wake us
		h.pause = min(2*h.pause, waitMost)
	}
	if h.listening {
		woken = h.callers[0].gate.woken
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	h.came = CamePolled
	select {
	case <-woken:
		h.came = CameWoken
	case <-listens:
	case <-timer.C:
	case <-ctx.Done():
	case <-l.closing:
	}
	return l.stopped(ctx, h.failure)
}

func (h *head) close() {
	if h.listening {
		h.locker.ears.close()
	}
}

// jitter is a random pause, d on average.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// ended is the error of a wait that its context ended.
func ended(ctx context.Context, failure error) error {
	var held *HeldError
	var quorum *QuorumError
	switch {
	case errors.As(failure, &held):
		return &HeldError{RetryAfter: held.RetryAfter, Err: ctx.Err()}
	case errors.As(failure, &quorum):
		late := *quorum
		late.Err = ctx.Err()
		return &late
	}
	return fmt.Errorf("redlock: %w", ctx.Err())
}
