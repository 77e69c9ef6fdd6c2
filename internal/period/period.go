// Package period has work done once in each period, on whatever machine: a lock whose last holder has left a mark.
package period

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// A run that has succeeded leaves a mark, the result of its lock, for as long as its period lasts. A period begins when a run gets the
// lock, and lasts for nine tenths of what was asked for: two ticks of a schedule are never exactly as far apart as they should be, least
// of all on machines whose clocks differ. Only durations count, never a wall clock.
const share = 0.9

// mark is what a run leaves.
type mark struct {
	Took  time.Duration `json:"took_ns"`  // from the lock to its release
	Kept  time.Duration `json:"kept_ns"`  // how long the mark is remembered
	Lasts time.Duration `json:"lasts_ns"` // the period, from the lock on
}

// Period is a time in which work succeeds once.
type Period time.Duration

// Least is the shortest period.
const Least = Period(time.Second)

// Acquire takes the lock on the key, unless the work of the present period is done: then the error matches redlock.ErrDone. It waits for
// who does it now, and gets the lock if that fails.
func (p Period) Acquire(ctx context.Context, locker *redlock.Locker, key string, opts ...redlock.LockOption) (*redlock.Lock, error) {
	came := time.Now()
	for {
		lock, err := locker.Lock(ctx, key, append(opts, redlock.WithRecall())...)
		var done *redlock.DoneError
		if !errors.As(err, &done) {
			return lock, err
		}
		var m mark
		if json.Unmarshal(done.Result, &m) != nil {
			return nil, fmt.Errorf("something else than a run once per period has left a result for this key, for %v: take another key, or redlock forget", done.Keep)
		}
		began := m.Took + m.Kept - done.Keep // so long ago
		if began-time.Since(came) < m.Lasts {
			return nil, err
		}
		// That run was of an earlier period, and took longer than it: its mark is still there for those that came within it.
		if err := sleep(ctx, done.Keep); err != nil {
			return nil, &redlock.HeldError{Err: err}
		}
	}
}

// Done frees the lock of a run that has succeeded, which was taken at that time, and marks its period as done.
func (p Period) Done(lock *redlock.Lock, taken time.Time) error {
	m := mark{Took: time.Since(taken), Lasts: p.lasts()}
	m.Kept = max(m.Lasts-m.Took, p.grace())
	text, err := json.Marshal(m)
	if err != nil {
		return errors.Join(err, lock.Unlock())
	}
	return lock.UnlockWith(text, m.Kept)
}

func (p Period) lasts() time.Duration { return time.Duration(share * float64(p)) }

// grace is how long a mark is there at least, for those that have waited for the run.
func (p Period) grace() time.Duration {
	return max(time.Millisecond, min(time.Duration(p)-p.lasts(), time.Minute))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
