package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

func (l *Locker) lock(ctx context.Context, keys []string, opts []LockOption, try bool) (*Lock, error) {
	o, err := l.with(opts)
	if err != nil {
		return nil, err
	}
	switch {
	case len(keys) == 0 || slices.Contains(keys, ""):
		return nil, errors.New("redlock: key is empty")
	case len(keys) > MaxKeys:
		return nil, fmt.Errorf("redlock: %d keys in one call: at most %d can be locked together", len(keys), MaxKeys)
	case len(keys) > 1 && o.recall:
		return nil, errors.New("redlock: WithRecall is for calls with one key")
	}
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	if err := l.sets.refusal(); err != nil {
		return nil, &QuorumError{Quorum: l.quorum, Err: err}
	}
	if ctx.Err() != nil {
		return nil, ended(ctx, nil)
	}
	try = try || o.wait == 0
	wait := waitLimit{ctx: ctx}
	defer wait.end()
	var first *attempt
	var room [1]*caller // enough for one key, the usual case; saves an allocation
	callers := room[:0]
	began := time.Now()
	if !try && o.wait != untilDone {
		wait.until = began.Add(o.wait)
	}
	arrival := l.arrival(began)
	for _, key := range keys {
		c := &caller{lockOptions: o, key: protocol.Key(l.prefix, key), try: try, several: len(keys) > 1, began: began, arrival: arrival}
		if first, err = l.reach(&wait, c); err != nil {
			l.leave(callers)
			return nil, err
		}
		callers = append(callers, c)
	}
	return l.acquire(ctx, &wait, callers, first)
}

// reach waits until the call is at the head of its gate. If the lock before it was handed on, it returns the
// attempt that came with that, otherwise nil.
func (l *Locker) reach(wait *waitLimit, c *caller) (*attempt, error) {
	for {
		head, later, err := l.gates.enter(c)
		switch {
		case err != nil:
			return nil, err
		case head:
			return nil, nil
		case !c.try:
			return l.standInLine(wait.context(), c)
		}
		select {
		case done := <-later:
			if done != nil && c.recall {
				return nil, done.clone()
			}
		case <-wait.ctx.Done():
			return nil, ended(wait.ctx, nil)
		case <-l.closing:
			return nil, ErrClosed
		}
	}
}

func (l *Locker) standInLine(ctx context.Context, c *caller) (*attempt, error) {
	var err error
	select {
	case a := <-c.turn:
		return a, nil
	case <-ctx.Done():
		err = ended(ctx, l.gates.held(c.gate))
	case <-l.closing:
		err = ErrClosed
	}
	if !l.gates.giveUp(c) { // it has just become the head: what it was handed must be given back
		if a := <-c.turn; a != nil {
			a.release(nil, false)
		}
		l.gates.leave(c.gate)
	}
	return nil, err
}

// leave gives up the head position at each gate, so that the next caller there moves up.
func (l *Locker) leave(callers []*caller) {
	for _, c := range callers {
		l.gates.leave(c.gate)
	}
}

// stopped returns why a call must leave, or nil.
func (l *Locker) stopped(ctx context.Context, failure error) error {
	select {
	case <-l.closing:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx, failure)
	default:
		return nil
	}
}
