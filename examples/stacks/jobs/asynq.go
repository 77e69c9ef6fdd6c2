package jobs

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Unique is for asynq's ServeMux.Use: of the tasks with one key, one succeeds in a period, on all workers, however often it was enqueued. The
// others wait for that one, and are then done, too; if it fails, the next one runs. asynq's own Unique keeps a task from being enqueued twice
// until it has run, and can't keep a worker that was taken for dead from running beside the one that has its task now.
//
// The context of a task ends when its lock is lost. A task that has waited too long, or for which no lock can be had, fails with an error, so that
// asynq tries again.
func Unique(l *redlock.Locker, key func(*asynq.Task) string, period, wait time.Duration) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			_, err := l.OncePer(ctx, key(task), period, func(ctx context.Context, _ *redlock.Lock) error {
				return next.ProcessTask(ctx, task)
			}, redlock.WithWait(wait))
			return err
		})
	}
}
