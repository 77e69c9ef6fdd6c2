package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

func (l *Locker) lock(ctx context.Context, keys []string, opts []LockOption, try bool) (*Lock, error) {
	o, err := l.with(opts)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(keys...); err != nil {
		return nil, err
	}
	switch {
	case len(keys) > MaxKeys:
		return nil, fmt.Errorf("redlock: %d keys in one call: at most %d can be locked together", len(keys), MaxKeys)
	case len(keys) > 1 && o.recall:
		return nil, errors.New("redlock: WithRecall and WithOncePer are for calls with one key")
	case o.period > 0:
		return l.ofPeriod(ctx, keys, o, try)
	}
	return l.take(ctx, keys, o, try)
}

// take takes the locks on the keys, or returns why it can't.
func (l *Locker) take(ctx context.Context, keys []string, o lockOptions, try bool) (*Lock, error) {
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	if err := l.heart.refusal(); err != nil {
		return nil, &QuorumError{Quorum: l.quorum, Err: err}
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, nil)
	}
	try = try || o.wait == 0
	wait := waitLimit{ctx: ctx}
	defer func() {
		if wait.cancel != nil {
			wait.cancel()
		}
	}()
	var room [1]*caller // enough for one key, the usual case; saves an allocation
	callers := room[:0]
	began := time.Now()
	if !try && o.wait != untilDone {
		wait.until = began.Add(o.wait)
	}
	for _, key := range keys {
		c := &caller{lockOptions: o, key: protocol.Key(l.prefix, key), try: try, several: len(keys) > 1, began: began}
		c.slots = o.most(key)
		callers = append(callers, c)
	}
	if len(callers) > 1 {
		for _, c := range callers {
			c.call = callers
		}
	}
	first, err := l.reach(&wait, callers, nil)
	if err != nil {
		return nil, err
	}
	return l.acquire(ctx, &wait, callers, first)
}

// checkKeys returns what is wrong with the keys of a call. Each is in several commands to each master.
func checkKeys(keys ...string) error {
	if len(keys) == 0 || slices.Contains(keys, "") {
		return errors.New("redlock: key is empty")
	}
	sum := 0
	for _, key := range keys {
		if len(key) > MaxKeyLength {
			return fmt.Errorf("%w: it has %d bytes, and may have %d: use a hash of it", ErrKeyTooLong, len(key), MaxKeyLength)
		}
		sum += len(key)
	}
	if sum > maxKeyLengths {
		return fmt.Errorf("%w: those of one call have %d bytes together, and may have %d: use hashes of them", ErrKeyTooLong, sum, maxKeyLengths)
	}
	return nil
}

// reach waits until the call is the head of all its gates. If the lock before it was handed on, it returns the attempt that
// came with that, otherwise nil. refused is nil, or the last attempt at the key for which the call has waited on the masters:
// it is the head there, and has a ticket. If another call is the head for another key now, both are given up, so that nobody
// waits for a call that can't have the key yet. After an error the call is the head of no gate.
func (l *Locker) reach(wait *waitLimit, callers []*caller, refused *attempt) (*attempt, error) {
	for {
		blocked, later, err := l.gates.enter(callers, refused == nil)
		switch {
		case blocked == nil:
			return nil, nil
		case refused != nil:
			refused.release(nil, false)
			refused.sendSoon()
			refused = nil
			l.gates.keepOnly(nil, callers)
		case err != nil:
			return nil, err
		case !blocked.try:
			return l.standInLine(wait.context(), callers, blocked)
		default:
			if err := l.awaitFirst(wait.ctx, later, blocked.recall); err != nil {
				return nil, err
			}
		}
	}
}

// awaitFirst waits until a try-lock should enter again, because the first attempt of the call before it is over, or returns why it
// must not.
func (l *Locker) awaitFirst(ctx context.Context, later <-chan *DoneError, recall bool) error {
	select {
	case done := <-later:
		if done != nil && recall {
			return done
		}
		return nil
	case <-ctx.Done():
		return ended(ctx, nil)
	case <-l.closing:
		return ErrClosed
	}
}

func (l *Locker) standInLine(ctx context.Context, callers []*caller, blocked *caller) (*attempt, error) {
	turn, err := blocked.turn, error(nil)
	select {
	case a := <-turn:
		if blocked.done != nil {
			return nil, blocked.done
		}
		return a, nil
	case <-ctx.Done():
		err = ended(ctx, l.gates.held(blocked))
	case <-l.closing:
		err = ErrClosed
	}
	if !l.gates.giveUp(callers) { // it has just become the head: what it was handed must be given back
		if a := <-turn; a != nil {
			a.release(nil, false)
		}
		l.gates.keepOnly(nil, callers)
	}
	return nil, err
}

// stopped returns why a call must leave, or nil.
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

// waitLimit is how long a call waits for other holders. It makes its timer only when the call begins to wait, which most calls
// never do.
type waitLimit struct {
	ctx    context.Context // of the call
	until  time.Time       // zero: until ctx ends
	wait   context.Context
	cancel context.CancelFunc
}

// context returns a context that ends when the call must not wait any longer.
func (w *waitLimit) context() context.Context {
	switch {
	case w.until.IsZero():
		return w.ctx
	case w.wait == nil:
		w.wait, w.cancel = context.WithDeadline(w.ctx, w.until)
	}
	return w.wait
}

// clock returns the time on the masters' clocks, in microseconds. Fences and tickets are made from it, not
// from our own clock, so that processes whose clocks differ still agree on them, and follow it by our monotonic
// clock, so that it doesn't matter when our wall clock is set. known is false if fewer masters than a quorum have
// reported their time; then it may be no better than our wall clock.
func (l *Locker) clock() (now int64, known bool) {
	var room [8]time.Duration // enough for most; saves an allocation
	leads := room[:0]
	for _, s := range l.streams {
		if lead, known := s.Lead(); known {
			leads = append(leads, lead)
		}
	}
	if len(leads) == 0 {
		return time.Now().UnixMicro(), false
	}
	slices.Sort(leads)
	now = (time.Since(admission.ProcessStart) + leads[len(leads)/2]).Microseconds()
	return now, len(leads) >= l.quorum
}

// number gives a call its ticket, the time when it came on the masters' clocks, and returns their time now, from which
// its fence is proposed. While the masters' clocks aren't known there is no ticket (0): one by our own clock would put all
// calls of this process before, or behind, those of the others. A ticket of the future was made by clocks that have been set
// since, and would be behind all others until then: it is made anew.
func (l *Locker) number(callers ...*caller) (now int64) {
	now, known := l.clock()
	for _, c := range callers {
		if known && (c.ticket == 0 || c.ticket > now) {
			c.ticket = now - time.Since(c.began).Microseconds()
		}
	}
	return now
}
