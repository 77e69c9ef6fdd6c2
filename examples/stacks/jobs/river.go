package jobs

import (
	"context"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// UniqueInRiver is Unique for River's Config.Middleware. River's own unique jobs are not inserted twice, and it can't keep a job that runs for
// longer than RescueStuckJobsAfter from being started again beside itself.
func UniqueInRiver(l *redlock.Locker, key func(*rivertype.JobRow) string, period, wait time.Duration) rivertype.Middleware {
	return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
		_, err := l.OncePer(ctx, key(job), period, func(ctx context.Context, _ *redlock.Lock) error { return work(ctx) }, redlock.WithWait(wait))
		return err
	})
}
