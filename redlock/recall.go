package redlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// DoneError is the error of a call with WithRecall for a key whose result is remembered. It matches ErrDone.
type DoneError struct {
	Result []byte        // of UnlockWith; calls that have waited for it together share it: don't change it
	Fence  uint64        // the fencing token of the lock under which the work was done
	Keep   time.Duration // how long the result is still remembered, at least on one master
}

func (e *DoneError) Error() string { return ErrDone.Error() }

// Unwrap returns ErrDone.
func (e *DoneError) Unwrap() error { return ErrDone }

// recall returns the result that an attempt has met, or nil: if there is none, if another holder is doing the work again
// because a quorum hasn't heard of the result, or if it is unsure that later calls meet this one, too.
//
// A result that a quorum remembers is met by every quorum of answers. One that fewer remember is remembered by a
// quorum before it is returned; the attempt, which has the key on the other masters of its quorum, frees it there with
// the result. Of several results, that with the largest fence was left by the last holder.
func (a *attempt) recall(ctx context.Context) *DoneError {
	if len(a.done) == 0 || a.answered() < a.locker.quorum || a.othersHold() {
		return nil
	}
	var last int64
	for _, c := range a.done {
		last = max(last, c.Reply.Fence)
	}
	ctx, cancel := context.WithTimeout(ctx, resultTime)
	defer cancel()
	if !a.locker.enterRoom(ctx) {
		return nil
	}
	defer a.locker.leaveRoom()
	result := a.fetch(ctx, last)
	if result == nil || !a.spread(ctx, result) {
		return nil
	}
	return &DoneError{Result: []byte(result.Data), Fence: uint64(result.Fence), Keep: result.Keep}
}

// fetch asks one master after the other for the result with this fence, because results are long, or two if the first takes
// its time.
func (a *attempt) fetch(ctx context.Context, fence int64) (result *protocol.Result) {
	var from []*link.Command
	for _, done := range a.done {
		if done.Reply.Fence == fence {
			from = append(from, done)
		}
	}
	r := a.locker.newRound(protocol.OpRecall, 1)
	asked, answered := 0, 0
	over := new(atomic.Bool)
	defer over.Store(true)
	for result == nil && answered < len(from) && ctx.Err() == nil {
		if asked < len(from) {
			done := from[asked]
			asked++
			a.locker.laneOf(done.Master, done.Key).Push(&link.Command{Command: protocol.Command{Op: protocol.OpRecall, Key: done.Key}, Master: done.Master, Abandoned: over, To: r.answers})
		}
		deadline := time.Now().Add(resultTime)
		if asked < len(from) {
			deadline = time.Now().Add(2 * a.locker.streams[from[asked].Master].ForKey(from[asked].Key).MaxTimeout())
		}
		r.collect(ctx, a.locker.closing, deadline, asked-answered, func(c *link.Command, _ int) bool {
			answered++
			if c.Reply.Err == nil && c.Reply.Result != nil && c.Reply.Result.Fence == fence {
				result = c.Reply.Result
			} else if c.Reply.Err != nil {
				a.fail(c.Master, c.Reply.Err)
			}
			return true
		})
		select {
		case <-a.locker.closing:
			return nil
		default:
		}
	}
	return result
}

// spread ends the attempt, and has the masters remember a result that don't yet. It reports whether a quorum remembers it.
func (a *attempt) spread(ctx context.Context, result *protocol.Result) bool {
	known, lacking := a.remembering(result.Fence)
	if known < a.locker.quorum && len(result.Data) > shortResult {
		ctx, cancel := context.WithDeadline(ctx, a.until())
		defer cancel()
		known = a.store(ctx, result)
		lacking = nil // store has seen to them
	}
	if known >= a.locker.quorum {
		a.locker.late.add(a.acquires[0].Key, result, lacking...)
		a.release(nil, false)
		return true
	}
	if len(result.Data) > shortResult {
		return false
	}
	a.answers.expect(protocol.OpRelease, 1)
	a.releaseWith(result, a.answers)
	a.collect(ctx, a.locker.closing, time.Now().Add(a.timeout), len(a.acquires), func(c *link.Command, pending int) bool {
		if remembers(c) {
			known++
		}
		return known >= a.locker.quorum || known+pending < a.locker.quorum
	})
	return known >= a.locker.quorum
}

// remembering returns how many masters have answered that they remember the result of this fence, and which others have answered.
func (a *attempt) remembering(fence int64) (known int, lacking []int) {
	for i := range a.acquires {
		switch c := &a.acquires[i]; {
		case c.Counted && c.Reply.Status == protocol.StatusDone && c.Reply.Fence == fence:
			known++
		case c.Counted && c.Reply.Err == nil:
			lacking = append(lacking, i)
		}
	}
	return known, lacking
}
