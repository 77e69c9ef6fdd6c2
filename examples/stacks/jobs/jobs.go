// Package jobs has jobs of gocron and of robfig/cron run once at each tick, on one of all machines that have the schedule.
//
// A machine whose clock is behind comes later to the same tick: so a job that has run stays done for nine tenths of its period, which is the
// time between two ticks. A job that fails or panics isn't done.
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
	period time.Duration
}

// NewGocronLocker is for gocron.WithDistributedLocker; each job needs a name of its own, which is its key. A job that should end when its
// lock is lost takes its own lock with OncePer instead: gocron doesn't tell it.
func NewGocronLocker(l *redlock.Locker, period time.Duration) gocron.Locker { return locker{l, period} }

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.Locker.Lock(ctx, key, redlock.WithOncePer(l.period), redlock.WithWait(moment))
	if err != nil {
		return nil, err // gocron skips the job
	}
	return held{lock}, nil
}

type held struct{ *redlock.Lock }

func (h held) Unlock(context.Context) error { return h.UnlockDone() }

// Once wraps a job for cron.Cron's AddJob. The job's context ends when its lock is lost.
func Once(l *redlock.Locker, key string, period time.Duration, job func(context.Context) error) cron.Job {
	return cron.FuncJob(func() {
		_, err := l.OncePer(context.Background(), key, period, func(ctx context.Context, _ *redlock.Lock) error { return job(ctx) }, redlock.WithWait(moment))
		if err != nil && !errors.Is(err, redlock.ErrHeld) { // otherwise another machine does it, or has done it
			log.Printf("%s: %v", key, err)
		}
	})
}
