package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Once has the work on the key done once: it calls f under the lock, as Do does, and has the masters remember what f returns, for as long
// as keep. Where that is remembered, Once returns it, and doesn't call f. Calls that come while f runs wait for it, as long as WithWait
// allows; if it fails or panics, nothing is remembered, and the next of them calls its own f. Calls that have waited together share a
// result: don't change it.
//
// An error that matches ErrNotRemembered comes with the result: this call has done the work, and a later one may do it again, as the lock
// was lost, too few masters have confirmed the result, or it has more than MaxResult bytes. Any other error is that of f, joined as by
// Do, or that of Lock with WithRecall, if f was not called; *UnreadableError means that the work is done, as far as is known.
func (l *Locker) Once(ctx context.Context, key string, keep time.Duration, f func(ctx context.Context, lock *Lock) ([]byte, error), opts ...LockOption) ([]byte, error) {
	if err := checkKeep(keep); err != nil {
		return nil, err
	}
	lock, err := l.Lock(ctx, key, append(slices.Clip(opts), WithRecall())...)
	var done *DoneError
	switch {
	case errors.As(err, &done):
		return done.Result, nil
	case err != nil:
		return nil, err
	}
	var result []byte
	err = lock.runDone(ctx, func(ctx context.Context) (err error) {
		result, err = f(ctx, lock)
		return err
	}, func() error { return lock.UnlockWith(result, keep) })
	if err != nil && !errors.Is(err, ErrNotRemembered) {
		result = nil
	}
	return result, err
}

// OncePer has the work on the key succeed once per period, on whatever machine: it calls f under the lock, as Do does, unless the work of
// the present period is done. ran says whether this call has called f. Calls that come while f runs wait for it, as long as WithWait
// allows, and call their own if it fails. See WithOncePer for what a period is.
//
// An error that matches ErrNotRemembered means that this call has done the work, and a later one may do it again in this period.
func (l *Locker) OncePer(ctx context.Context, key string, period time.Duration, f func(ctx context.Context, lock *Lock) error, opts ...LockOption) (ran bool, err error) {
	lock, err := l.Lock(ctx, key, append(slices.Clip(opts), WithOncePer(period))...)
	switch {
	case errors.Is(err, ErrDone):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, lock.runDone(ctx, func(ctx context.Context) error { return f(ctx, lock) }, lock.UnlockDone)
}

// runDone calls f under the lock, and frees that with unlockDone if f has succeeded, and without otherwise.
func (k *Lock) runDone(ctx context.Context, f func(context.Context) error, unlockDone func() error) error {
	var done bool
	var unlocked error
	err := k.run(ctx, func(ctx context.Context, _ *Lock) error {
		if err := f(ctx); err != nil {
			return err
		}
		done, unlocked = true, unlockDone()
		return nil
	})
	switch {
	case !done:
		return err
	case unlocked != nil:
		return fmt.Errorf("%w: %w", ErrNotRemembered, unlocked)
	}
	return nil
}

// MinPeriod is the shortest period of WithOncePer.
const MinPeriod = time.Second

// periodShare is how much of what was asked for a period lasts: two ticks of a schedule are never exactly as far apart as they should be,
// least of all on machines whose clocks differ.
const periodShare = 0.9

// WithOncePer is for work that is to succeed once per period, on whatever machine. Free the lock with UnlockDone once the work is done, and
// with Unlock otherwise: until the period is over, further calls with this option fail with an error that matches ErrDone. A
// period begins when the lock was taken, and lasts for nine tenths of what is given, so that each tick of a schedule is in a period of
// its own, although clocks differ. It is at least MinPeriod, and for calls with one key. OncePer does all this in one call.
// Default: 0, whenever it is asked for.
func WithOncePer(period time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.period, o.recall = period, o.recall || period != 0; return o })
}

// mark is the result of work that was done in a period. Only durations count, never a wall clock.
type mark struct {
	Took  time.Duration `json:"took_ns"`  // from the lock to its release
	Kept  time.Duration `json:"kept_ns"`  // how long the mark is remembered
	Lasts time.Duration `json:"lasts_ns"` // the period, from the lock on
}

// UnlockDone is Unlock after work that was done, for a lock that was taken WithOncePer: the masters remember that for the rest of the
// period. Its errors are those of UnlockWith.
func (k *Lock) UnlockDone() error {
	period := k.caller.period
	if period == 0 {
		return errors.Join(errors.New("redlock: UnlockDone needs a lock that was taken WithOncePer: no period is known"), k.Unlock())
	}
	m := mark{Took: time.Since(k.since()), Lasts: time.Duration(periodShare * float64(period))}
	grace := max(time.Millisecond, min(period-m.Lasts, time.Minute)) // for those that have waited for this work, if it took longer than its period
	m.Kept = max(m.Lasts-m.Took, grace)
	text, err := json.Marshal(m)
	if err != nil {
		return errors.Join(err, k.Unlock())
	}
	return k.UnlockWith(text, m.Kept)
}

// ofPeriod takes the lock unless the work of the present period is done.
func (l *Locker) ofPeriod(ctx context.Context, keys []string, o lockOptions, try bool) (*Lock, error) {
	came := time.Now()
	for {
		lock, err := l.take(ctx, keys, o, try)
		var done *DoneError
		if !errors.As(err, &done) {
			return lock, err
		}
		var m mark
		if json.Unmarshal(done.Result, &m) != nil {
			return nil, fmt.Errorf("redlock: something else than work that is done once per period has left a result for this key, for %v: take another key, or forget it", done.Keep)
		}
		began := m.Took + m.Kept - done.Keep // so long ago
		if began-time.Since(came) < m.Lasts {
			return nil, err
		}
		// That work was of an earlier period, and took longer than it: its mark is still there for those that came within it.
		if try || o.wait == 0 {
			return nil, &HeldError{RetryAfter: done.Keep}
		}
		if err := l.outlast(ctx, done.Keep, o.wait-time.Since(came)); err != nil {
			return nil, err
		}
		if o.wait != untilDone {
			o.wait = max(o.wait-time.Since(came), 0)
		}
	}
}

// outlast waits until a mark is gone, unless the call may wait for less than that.
func (l *Locker) outlast(ctx context.Context, keep, wait time.Duration) error {
	timer := time.NewTimer(min(keep, wait))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return &HeldError{Err: ctx.Err()}
	case <-l.closing:
		return ErrClosed
	case <-timer.C:
	}
	if wait < keep {
		return &HeldError{RetryAfter: keep - wait, Err: context.DeadlineExceeded}
	}
	return nil
}

// DoneError is the error of a call with WithRecall for a key whose result is remembered. It matches ErrDone.
type DoneError struct {
	Result []byte        // of UnlockWith; calls that have waited for it together share it: don't change it
	Fence  uint64        // the fencing token of the lock under which the work was done
	Keep   time.Duration // how long the result is still remembered, at least on one master
}

func (e *DoneError) Error() string { return ErrDone.Error() }

// Unwrap returns ErrDone.
func (e *DoneError) Unwrap() error { return ErrDone }

// recall returns the result that an attempt has met, or nil: if there is none, if another holder is doing the work again
// because a quorum hasn't heard of the result, or if it is unsure that later calls meet this one, too.
//
// A result that a quorum remembers is met by every quorum of replies. One that fewer remember is remembered by a
// quorum before it is returned; the attempt, which has the key on the other masters of its quorum, frees it there with
// the result. Of several results, that with the largest fence was left by the last holder.
func (a *attempt) recall(ctx context.Context) *DoneError {
	if len(a.done) == 0 || a.answered() < a.locker.quorum || a.othersHold() {
		return nil
	}
	var last int64
	for _, c := range a.done {
		last = max(last, c.Reply.Fence)
	}
	ctx, cancel := context.WithTimeout(ctx, resultTime)
	defer cancel()
	if !a.locker.enterRoom(ctx) {
		return nil
	}
	defer a.locker.leaveRoom()
	result := a.fetch(ctx, last)
	if result == nil || !a.spread(ctx, result) {
		return nil
	}
	return &DoneError{Result: []byte(result.Data), Fence: uint64(result.Fence), Keep: result.Keep}
}

// fetch asks one master after the other for the result with this fence, because results are long, or two if the first takes
// its time.
func (a *attempt) fetch(ctx context.Context, fence int64) (result *protocol.Result) {
	var from []*link.Command
	for _, done := range a.done {
		if done.Reply.Fence == fence {
			from = append(from, done)
		}
	}
	r := a.locker.newRound(protocol.OpRecall, 1)
	asked, answered := 0, 0
	over := new(atomic.Bool)
	defer over.Store(true)
	for result == nil && answered < len(from) && ctx.Err() == nil {
		if asked < len(from) {
			done := from[asked]
			asked++
			a.locker.laneOf(done.Master, done.Key).Push(&link.Command{Command: protocol.Command{Op: protocol.OpRecall, Key: done.Key}, Master: done.Master, Abandoned: over, To: r.replies})
		}
		deadline := time.Now().Add(resultTime)
		if asked < len(from) {
			deadline = time.Now().Add(2 * a.locker.streams[from[asked].Master].ForKey(from[asked].Key).MaxTimeout())
		}
		r.collect(ctx, a.locker.closing, deadline, asked-answered, func(c *link.Command, _ int) bool {
			answered++
			if c.Reply.Err == nil && c.Reply.Result != nil && c.Reply.Result.Fence == fence {
				result = c.Reply.Result
			} else if c.Reply.Err != nil {
				a.fail(c.Master, c.Reply.Err)
			}
			return true
		})
		select {
		case <-a.locker.closing:
			return nil
		default:
		}
	}
	return result
}

// spread ends the attempt, and has the masters remember a result that don't yet. It reports whether a quorum remembers it.
func (a *attempt) spread(ctx context.Context, result *protocol.Result) bool {
	known, lacking := a.remembering(result.Fence)
	if known < a.locker.quorum && len(result.Data) > shortResult {
		ctx, cancel := context.WithDeadline(ctx, a.until())
		defer cancel()
		known = a.store(ctx, result)
		lacking = nil // store has seen to them
	}
	if known >= a.locker.quorum {
		a.locker.late.add(a.acquires[0].Key, result, lacking...)
		a.release(nil, false)
		return true
	}
	if len(result.Data) > shortResult {
		return false
	}
	a.replies.expect(protocol.OpRelease, 1)
	a.releaseWith(result, a.replies)
	a.collect(ctx, a.locker.closing, time.Now().Add(a.timeout), len(a.acquires), func(c *link.Command, pending int) bool {
		if remembers(c) {
			known++
		}
		return known >= a.locker.quorum || known+pending < a.locker.quorum
	})
	return known >= a.locker.quorum
}

// remembering returns how many masters have answered that they remember the result of this fence, and which others have answered.
func (a *attempt) remembering(fence int64) (known int, lacking []int) {
	for i := range a.acquires {
		switch c := &a.acquires[i]; {
		case c.Counted && c.Reply.Status == protocol.StatusDone && c.Reply.Fence == fence:
			known++
		case c.Counted && c.Reply.Err == nil:
			lacking = append(lacking, i)
		}
	}
	return known, lacking
}
