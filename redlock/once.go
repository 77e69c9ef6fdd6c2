package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Once does the work on the key once. It calls f under the lock, as Do does, and makes the masters remember the result of f for the time keep. While
// they remember a result, Once returns it, and doesn't call f. Calls that come while f runs wait for its end, for as long as WithWait allows. If f
// fails or panics, nothing is remembered, and the next call calls its own f. Calls that have waited together get the same slice: don't change it.
//
// An error that matches ErrNotRemembered comes with the result. This call has done the work, and a later call may do it again, because the lock was
// lost, too few masters have confirmed the result, or it has more than MaxResult bytes. Any other error is from f, joined with the lock's error as in
// Do. If f was not called, the error is from Lock with WithRecall. ErrUnreadable means that the work is done, as far as is known.
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

// OncePer makes the work on the key succeed once per period, on any machine. It calls f under the lock, as Do does, unless the work of the present
// period is done. ran reports whether this call has called f. Calls that come while f runs wait for its end, for as long as WithWait allows, and call
// their own f if it fails. WithOncePer explains the period.
//
// An error that matches ErrNotRemembered means that this call has done the work, and a later call may do it again in this period.
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

// MinPeriod is the shortest period of WithOncePer.
const MinPeriod = time.Second

// periodShare is the part of the given period that a done mark lasts. Two ticks of a schedule are never exactly one period apart, least of all on
// machines whose clocks differ.
const periodShare = 0.9

// WithOncePer is for work that is to succeed once per period, on any machine. Free the lock with UnlockDone once the work is done, and with Unlock
// otherwise. After UnlockDone, further calls with this option fail until the period is over, with an error that matches ErrDone. The period begins
// when the lock was taken. It lasts nine tenths of the given time, so that each tick of a schedule is in a separate period, although clocks differ.
// The given time is at least MinPeriod. The option is for calls with one key. OncePer does all this in one call. Default: 0, no period.
func WithOncePer(period time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.period, o.recall = period, o.recall || period != 0; return o })
}

// mark is the result that UnlockDone leaves. It has only durations, because wall clocks differ.
type mark struct {
	Took  time.Duration `json:"took_ns"`  // the time from the lock to its release
	Kept  time.Duration `json:"kept_ns"`  // how long the masters remember the mark
	Lasts time.Duration `json:"lasts_ns"` // the length of the period, which begins with the lock
}

func (l *Locker) ofPeriod(ctx context.Context, keys []string, o lockOptions, try bool) (*Lock, error) {
	came, wait := time.Now(), o.wait
	for {
		lock, err := l.take(ctx, keys, o, try)
		var done *DoneError
		if !errors.As(err, &done) {
			return lock, err
		}
		var m mark
		if json.Unmarshal(done.Result, &m) != nil || m.Lasts <= 0 { // another JSON object has none of its fields
			return nil, fmt.Errorf("redlock: something else than work that is done once per period has left a result for this key, for %v: take another key, or forget it", done.Keep)
		}
		began := m.Took + m.Kept - done.Keep // the time since the work began
		if began-time.Since(came) < m.Lasts {
			return nil, &DoneError{Fence: done.Fence, Keep: done.Keep, Ago: m.Kept - done.Keep}
		}
		// The work took longer than its period, so its period is over. Its mark is kept only for calls that came during that period.
		if try || o.wait == 0 {
			return nil, &HeldError{RetryAfter: done.Keep}
		}
		if err := l.outlast(ctx, done.Keep, wait-time.Since(came)); err != nil {
			return nil, err
		}
		if wait != untilDone {
			o.wait = max(wait-time.Since(came), 0)
		}
	}
}

// outlast waits until the masters have forgotten a mark. It returns an error if the call may not wait that long.
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

// DoneError is the error of a call with WithRecall or WithOncePer for a key whose work is done. It matches ErrDone.
type DoneError struct {
	Result []byte        // the result from UnlockWith; nil for WithOncePer. Other calls may have the same slice, so don't change it
	Fence  uint64        // the fencing token of the lock under which the work was done
	Keep   time.Duration // how long the work is still remembered, at least on one master; then it may be done again
	Ago    time.Duration // how long ago the work was done; 0 without WithOncePer

	key string // whose result it is: see call.wants
}

func (e *DoneError) Error() string { return ErrDone.Error() }

// Unwrap returns ErrDone.
func (e *DoneError) Unwrap() error { return ErrDone }
