// Package jobs has jobs of gocron and of robfig/cron run once at each tick, on one of all machines that have the schedule.
//
// A machine whose clock is behind comes later to the same tick: so a job that has run stays done for a while (keep), which is shorter
// than the time between two ticks and longer than clocks differ. A job that fails or panics isn't done.
package jobs

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/robfig/cron/v3"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// moment is how long machines that ask at the same time have to agree on one.
const moment = time.Second

// locker is a gocron.Locker. gocron doesn't say whether a job has failed, so any end of it counts as done.
type locker struct {
	*redlock.Locker
	keep time.Duration
}

// NewGocronLocker is for gocron.WithDistributedLocker; each job needs a name of its own, which is its key. A job that should end when its
// lock is lost takes its own lock with Do instead: gocron doesn't tell it.
func NewGocronLocker(l *redlock.Locker, keep time.Duration) gocron.Locker { return locker{l, keep} }

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.Locker.Lock(ctx, key, redlock.WithRecall(), redlock.WithWait(moment))
	if err != nil {
		return nil, err // gocron skips the job
	}
	return held{lock, l.keep}, nil
}

type held struct {
	*redlock.Lock
	keep time.Duration
}

func (h held) Unlock(context.Context) error { return h.UnlockWith([]byte("done"), h.keep) }

// Once wraps a job for cron.Cron's AddJob. The job's context ends when its lock is lost.
func Once(l *redlock.Locker, key string, keep time.Duration, job func(context.Context) error) cron.Job {
	return cron.FuncJob(func() {
		lock, err := l.Lock(context.Background(), key, redlock.WithRecall(), redlock.WithWait(moment))
		switch {
		case errors.Is(err, redlock.ErrHeld), errors.Is(err, redlock.ErrDone):
			return // another machine does it, or has done it
		case err != nil:
			log.Printf("%s: %v", key, err)
			return
		}
		defer func() { _ = lock.Unlock() }() // after a failure, or a panic that cron.Recover catches
		if err = job(lock.Context()); err == nil {
			err = lock.UnlockWith([]byte("done"), keep)
		}
		if err != nil {
			log.Printf("%s: %v", key, err)
		}
	})
}
