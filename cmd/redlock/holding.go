//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/job"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// holding is a lock that redlock run holds.
type holding struct {
	lease job.Lease
	fence uint64
	// free frees the lock, and what it was taken with; done says whether the work is done.
	free func(done bool) error
}

// patience is how long a person waits without being told for what.
const patience = 300 * time.Millisecond

// acquire takes the lock as the flags say.
func (c *runCommand) acquire(ctx context.Context) (*holding, error) {
	var opts []redlock.LockOption
	switch {
	case c.try:
		opts = append(opts, redlock.WithWait(0))
	case c.waits:
		opts = append(opts, redlock.WithWait(c.wait))
	}
	opts = append(opts, redlock.WithTTL(c.ttl), redlock.WithMaxHold(c.maxHold), redlock.WithLabel("redlock run"))
	locker, err := c.masters.Open()
	if err != nil {
		return nil, &coded{codeUsage, err}
	}
	told := c.explainWait(ctx, locker)
	lock, err := c.lock(ctx, locker, opts)
	told()
	taken := time.Now()
	if err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	free := func(done bool) (err error) {
		if done && c.period > 0 {
			err = job.Period(c.period).Done(lock, taken)
		} else {
			err = lock.Unlock()
		}
		return errors.Join(err, locker.Close())
	}
	return &holding{lease: lock, fence: lock.Fence(), free: free}, nil
}

func (c *runCommand) lock(ctx context.Context, locker *redlock.Locker, opts []redlock.LockOption) (*redlock.Lock, error) {
	if c.period > 0 {
		return job.Period(c.period).Acquire(ctx, locker, c.key, opts...)
	}
	return locker.Lock(ctx, c.key, opts...)
}

// explainWait tells a person at the terminal, once, what a command waits for. The function that it returns ends that.
func (c *runCommand) explainWait(ctx context.Context, locker *redlock.Locker) (stop func()) {
	if !isTerminal(os.Stderr) || c.try {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
			return
		case <-time.After(patience):
		}
		text := fmt.Sprintf("waiting for the lock on %s", c.key)
		if seen, err := locker.Inspect(ctx, c.key); err == nil && seen.Held {
			text += fmt.Sprintf(", which %s holds (fence %d)", seen.Holder, seen.Fence)
		}
		if ctx.Err() == nil {
			tell("%s", text)
		}
	}()
	return func() { cancel(); <-ended }
}
