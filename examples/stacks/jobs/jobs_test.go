package jobs_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/robfig/cron/v3"

	"github.com/caddy-redlock/caddy-redlock/examples/stacks/jobs"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// machines returns the lockers of so many machines.
func machines(t *testing.T, n int) (all []*redlock.Locker) {
	t.Helper()
	servers := redistest.Start(t, 3)
	for range n {
		l, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		all = append(all, l)
	}
	return all
}

// TestGocron: three machines have the same schedule, and one of them runs the job.
func TestGocron(t *testing.T) {
	var runs, skipped atomic.Int32
	ended := make(chan struct{}, 3)
	for _, l := range machines(t, 3) {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(jobs.NewGocronLocker(l, time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Shutdown() })
		_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() { runs.Add(1); ended <- struct{}{} }), gocron.WithName("report"),
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
				if !errors.Is(err, redlock.ErrHeld) && !errors.Is(err, redlock.ErrDone) {
					t.Error(err)
				}
				skipped.Add(1)
				ended <- struct{}{}
			})))
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
	}
	for range 3 {
		<-ended
	}
	if runs.Load() != 1 || skipped.Load() != 2 {
		t.Errorf("%d ran, %d skipped; want 1 and 2", runs.Load(), skipped.Load())
	}
}

// TestCron: a tick comes to three machines; it is done when the job has succeeded on one of them.
func TestCron(t *testing.T) {
	var runs atomic.Int32
	fails := true
	for _, l := range machines(t, 3) {
		c := cron.New(cron.WithChain(cron.Recover(cron.DiscardLogger)))
		id, err := c.AddJob("@hourly", jobs.Once(l, "report", time.Hour, func(context.Context) error {
			if runs.Add(1); fails {
				fails = false
				return errors.New("the first one fails")
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		c.Entry(id).WrappedJob.Run()
	}
	if runs.Load() != 2 {
		t.Errorf("%d ran, want the one that fails and one more", runs.Load())
	}
}
