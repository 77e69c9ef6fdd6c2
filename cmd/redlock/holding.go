//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/job"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// holding is a lock that redlock run holds.
type holding struct {
	lease job.Lease
	fence uint64
	slot  int
	// free frees the lock, and what it was taken with; done says whether the work is done.
	free func(done bool) error
}

// patience is how long a person waits without being told for what.
const patience = 300 * time.Millisecond

// guardOff is the way out of that wait.
const guardOff = "REDLOCK_RESTART_GUARD=off is for trials"

// label is what others see of the holder, beside its name.
const label = "redlock run"

// acquire takes the lock as the flags say.
func (c *runCommand) acquire(ctx context.Context) (*holding, error) {
	if c.agent != "" {
		return c.acquireThrough(ctx)
	}
	var opts []redlock.LockOption
	switch {
	case c.try:
		opts = append(opts, redlock.WithWait(0))
	case c.waits:
		opts = append(opts, redlock.WithWait(c.wait))
	}
	opts = append(opts, redlock.WithTTL(c.ttl), redlock.WithMaxHold(c.maxHold), redlock.WithLabel(label), redlock.WithOncePer(c.period), redlock.WithConcurrency(c.most))
	locker, err := c.masters.Open(redlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, &coded{codeUsage, err}
	}
	inspect := func(ctx context.Context) (holder string, fence uint64) {
		if seen, err := locker.Inspect(ctx, c.key); err == nil {
			return seen.Holder, seen.Fence
		}
		return "", 0
	}
	if err := c.refuseOwn(ctx, inspect); err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	told := c.explainWait(ctx, inspect, func(context.Context) time.Time {
		status := locker.Status()
		var restarted []time.Time
		for _, m := range status.Masters {
			if m.State == redlock.MasterRestarted {
				restarted = append(restarted, m.Until)
			}
		}
		return quorumAt(status.Quorum-status.Available, restarted)
	})
	lock, err := locker.Lock(ctx, c.key, opts...)
	told()
	if err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	free := func(done bool) (err error) {
		if done && c.period > 0 {
			err = lock.UnlockDone()
		} else {
			err = lock.Unlock()
		}
		return errors.Join(err, locker.Close())
	}
	return &holding{lease: lock, fence: lock.Fence(), slot: lock.Slot(), free: free}, nil
}

// acquireThrough is acquire with an agent in between.
func (c *runCommand) acquireThrough(ctx context.Context) (*holding, error) {
	agent, err := newAgentClient(c.agent)
	if err != nil {
		return nil, &coded{codeUsage, err}
	}
	inspect := func(ctx context.Context) (holder string, fence uint64) { return agent.inspect(ctx, c.key) }
	if err := c.refuseOwn(ctx, inspect); err != nil {
		return nil, err
	}
	told := c.explainWait(ctx, inspect, agent.guardedUntil)
	lease, first, err := c.lockThrough(ctx, agent)
	told()
	if err != nil {
		return nil, err
	}
	return &holding{lease: lease, fence: first.Fence, slot: first.Slot, free: func(done bool) error { return lease.release(done && c.period > 0) }}, nil
}

// heldVariable has the keys, each with its fence, that this process and those above it hold by redlock run, as JSON.
const heldVariable = "REDLOCK_HELD"

func heldAbove() map[string]uint64 {
	held := make(map[string]uint64)
	_ = json.Unmarshal([]byte(os.Getenv(heldVariable)), &held) // who sets it to something else holds nothing
	if held == nil {
		held = make(map[string]uint64)
	}
	return held
}

// refuseOwn returns an error if a redlock run above this one has the key, which would wait for itself. Its variable alone doesn't say so:
// a daemon may have inherited it, and the lock be gone.
func (c *runCommand) refuseOwn(ctx context.Context, inspect func(context.Context) (holder string, fence uint64)) error {
	own, above := heldAbove()[c.key]
	if !above || c.most > 1 {
		return nil
	}
	if holder, fence := inspect(ctx); holder == "" || fence != 0 && fence != own { // 0: the masters forget it for a moment between renewals
		return nil
	}
	return &coded{codeUsage, errors.New("the redlock run around this one has the lock on the same key: this one would wait for itself")}
}

// quorumAt returns when so many masters that have just started will have a vote again; zero if they are too few, or none is missing.
func quorumAt(missing int, restarted []time.Time) time.Time {
	if missing <= 0 || missing > len(restarted) {
		return time.Time{}
	}
	slices.SortFunc(restarted, time.Time.Compare)
	return restarted[missing-1]
}

// explainWait tells a person at the terminal, once, what a command waits for; and wherever its errors go, that it waits for masters that
// have just started, which a first try would take for a hang. The function that it returns ends that.
func (c *runCommand) explainWait(ctx context.Context, inspect func(context.Context) (holder string, fence uint64), guardedUntil func(context.Context) time.Time) (stop func()) {
	if c.try {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		person := isTerminal(os.Stderr)
		for pause := patience; ; pause = min(2*pause, time.Minute) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			if until := guardedUntil(ctx); !until.IsZero() {
				tell("waiting for masters that have just started, and may have forgotten locks: they have no vote before %s, for another %v; %s",
					until.Format(time.TimeOnly), time.Until(until).Round(time.Second), guardOff)
				return
			}
			if !person {
				continue
			}
			person = false
			text := fmt.Sprintf("waiting for the lock on %s", c.key)
			if c.most > 1 {
				text = fmt.Sprintf("waiting for one of the %d slots of %s", c.most, c.key)
			} else if holder, fence := inspect(ctx); holder != "" {
				text += fmt.Sprintf(", which %s holds", holder)
				if fence != 0 { // the masters forget it for a moment between renewals
					text += fmt.Sprintf(" (fence %d)", fence)
				}
			}
			if ctx.Err() == nil {
				tell("%s", text)
			}
		}
	}()
	return func() { cancel(); <-ended }
}
