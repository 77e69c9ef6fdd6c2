package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

func (l *Locker) lock(ctx context.Context, key string, opts []LockOption, try bool) (*Lock, error) {
	o, err := l.with(opts)
	if err != nil {
		return nil, err
	}
	if key == "" {
		return nil, errors.New("redlock: key is empty")
	}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.calls.Done()
	if ctx.Err() != nil {
		return nil, ended(ctx, nil)
	}
	c := &caller{lockOptions: o, key: l.prefix + ":{" + key + "}", try: try, came: time.Now()}
	for {
		head, later, err := l.gates.enter(c, l.clock())
		switch {
		case err != nil:
			return nil, err
		case head:
			return l.acquire(ctx, c, nil)
		case !try:
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

// standInLine waits until the call is the head of its gate.
func (l *Locker) standInLine(ctx context.Context, c *caller) (*Lock, error) {
	var err error
	select {
	case a := <-c.turn:
		return l.acquire(ctx, c, a)
	case <-ctx.Done():
		err = ended(ctx, &HeldError{})
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

// acquire is for the head of a gate: it tries until it has the lock, or leaves. The first attempt may
// have been begun by the lock before it.
func (l *Locker) acquire(ctx context.Context, c *caller, a *attempt) (*Lock, error) {
	h := &head{locker: l, caller: c, pause: waitLeast, came: CameFree}
	defer h.close()
	if a != nil {
		h.came = CamePassed
	}
	for {
		if a == nil {
			if l.ears.hear() {
				l.gates.calm(c.gate) // what was said before is known soon
			}
			a = l.newAttempt(c, nil, nil)
		}
		won := a.win(ctx)
		h.queued = h.queued || a.queuedAnywhere()
		if h.queued { // also where this attempt hasn't been sent
			a.touched.Store(true)
		}
		if won {
			lock := newLock(ctx, a, c, h.came)
			l.gates.outcome(c.gate, lock, nil)
			l.keeper.keep(lock)
			l.observer.Acquired(lock.wait)
			return lock, nil
		}
		err := l.stopped(ctx, h.failure)
		if err == nil {
			a.release(nil, true)
			err = h.rest(ctx, a)
		}
		if err != nil {
			a.release(nil, false)
			l.gates.leave(c.gate)
			return nil, err
		}
		a = nil
	}
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

// head is a call at the head of its gate, between its attempts.
type head struct {
	locker    *Locker
	caller    *caller
	tries     int
	failure   error         // of the last attempt
	pause     time.Duration // before the next, where no master wakes us
	queued    bool          // the call may be in a master's queue
	listening bool
	came      Came
}

// rest waits until it is time for another attempt. An error says that there is none.
func (h *head) rest(ctx context.Context, a *attempt) error {
	l := h.locker
	h.tries++
	h.failure = a.failure()
	l.gates.outcome(h.caller.gate, nil, h.failure)
	l.compareTerms(a)

	rest := jitter(h.pause)
	var listens, woken <-chan struct{}
	switch {
	case h.caller.try && (h.tries > splitTries || !a.split()):
		return h.failure
	case h.caller.try:
		rest = jitter(splitPause)
	case !errors.Is(h.failure, ErrHeld):
		h.pause = min(2*h.pause, waitMost)
	case !h.listening:
		h.listening = true
		l.gates.calm(h.caller.gate)
		listens, rest = l.ears.open(), a.timeout
	case !a.deaf:
		rest = a.patience()
	default: // not all masters wake us
		h.pause = min(2*h.pause, waitMost)
	}
	if h.listening {
		woken = h.caller.gate.woken
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
