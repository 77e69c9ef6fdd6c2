//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/job"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

type holding struct {
	lease job.Lease
	fence uint64
	slot  int
	// free frees the lock and closes its door; done says whether the work is done.
	free func(done bool) error
}

// guardOff is the end of messages about masters that have just started: how a trial avoids the wait.
const guardOff = "REDLOCK_RESTART_GUARD=off is for trials"

// label is the label of the lock, which others see beside the name of the holder.
const label = "redlock run"

// door takes the lock: on the masters, or through an agent.
type door interface {
	// lock takes the lock. It waits for at most this time, or with nil until ctx ends.
	lock(ctx context.Context, wait *time.Duration) (*holding, error)
	// inspect returns who has the key, or "".
	inspect(ctx context.Context) (holder string, fence uint64)
	// status returns the state of the masters. A Status without masters means that the state isn't known.
	status(ctx context.Context) redlock.Status
	close() error
}

func (c *runCommand) acquire(ctx context.Context) (*holding, error) {
	d, err := c.door()
	if err != nil {
		return nil, &coded{codeUsage, err}
	}
	if err := c.refuseOwn(ctx, d.inspect); err != nil {
		return nil, errors.Join(err, d.close())
	}
	held, err := c.await(ctx, d)
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	free := held.free
	held.free = func(done bool) error { return errors.Join(free(done), d.close()) }
	return held, nil
}

func (c *runCommand) door() (door, error) {
	if c.agent != "" {
		agent, err := newAgentClient(c.agent, "")
		if err == nil && agent.network != "unix" { // on this machine, so both have the same clocks
			err = fmt.Errorf("--agent %s: want unix:/path of an agent's socket", c.agent)
		}
		return &agentDoor{agent, c}, err
	}
	locker, err := c.masters.Open(redlock.WithLogger(slog.New(slog.DiscardHandler)))
	return &ownDoor{locker, c}, err
}

type ownDoor struct {
	*redlock.Locker
	run *runCommand
}

func (d *ownDoor) lock(ctx context.Context, wait *time.Duration) (*holding, error) {
	c := d.run
	opts := []redlock.LockOption{redlock.WithTTL(c.ttl), redlock.WithMaxHold(c.lockHold()), redlock.WithLabel(label), redlock.WithOncePer(c.period), redlock.WithConcurrency(c.most)}
	if wait != nil {
		opts = append(opts, redlock.WithWait(*wait))
	}
	lock, err := d.Lock(ctx, c.key, opts...)
	if err != nil {
		return nil, err
	}
	free := func(done bool) error {
		if done {
			return lock.UnlockDone()
		}
		return lock.Unlock()
	}
	return &holding{lease: lock, fence: lock.Fence(), slot: lock.Slot(), free: free}, nil
}

func (d *ownDoor) inspect(ctx context.Context) (holder string, fence uint64) {
	if seen, err := inspect.Key(ctx, d.Locker, d.run.key); err == nil {
		return seen.Holder, seen.Fence
	}
	return "", 0
}

func (d *ownDoor) status(context.Context) redlock.Status { return d.Status() }

func (d *ownDoor) close() error { return d.Close() }

type agentDoor struct {
	*agentClient
	run *runCommand
}

func (d *agentDoor) lock(ctx context.Context, wait *time.Duration) (*holding, error) {
	lease, first, err := d.run.lockThrough(ctx, d.agentClient, wait)
	if err != nil {
		return nil, err
	}
	return &holding{lease: lease, fence: first.Fence, slot: first.Slot, free: lease.release}, nil
}

func (d *agentDoor) inspect(ctx context.Context) (holder string, fence uint64) {
	return d.agentClient.inspect(ctx, d.run.key)
}

func (d *agentDoor) close() error { return nil }

// heldVariable has the names of the locks, each with its fence, that this process and those above it hold by redlock run, as JSON.
const heldVariable = "REDLOCK_HELD"

func heldAbove() map[string]uint64 {
	held := make(map[string]uint64)
	_ = json.Unmarshal([]byte(os.Getenv(heldVariable)), &held) // a variable that is not JSON names no keys
	if held == nil {
		held = make(map[string]uint64)
	}
	return held
}

// refuseOwn returns an error if a redlock run above this one has the key, because this one would wait for itself. The variable alone doesn't prove
// that: a daemon may have inherited it, and the lock may be gone.
func (c *runCommand) refuseOwn(ctx context.Context, inspect func(context.Context) (holder string, fence uint64)) error {
	own, above := heldAbove()[lockname.Of(c.key)]
	if !above || c.most > 1 {
		return nil
	}
	if holder, fence := inspect(ctx); holder == "" || fence != 0 && fence != own { // a fence of 0 is not another fence: the masters forget it for a moment between renewals
		return nil
	}
	return &coded{codeUsage, errors.New("the redlock run around this one has the lock on the same key: this one would wait for itself")}
}
