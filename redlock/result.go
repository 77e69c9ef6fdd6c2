package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// MaxResult is the largest number of bytes of a result.
const MaxResult = protocol.MaxResult

// UnlockWith is Unlock that has the masters remember a result for the key: the command that frees the key on a master
// stores the result there, so that no call with WithRecall can take the lock in between. Such calls fail with a
// *DoneError, which has the result, for as long as it is kept.
//
// If the error is nil, a quorum of the masters remembers the result, and so does every later call with WithRecall, unless
// so many masters lose their data that no quorum of those that have it is left. If the lock had ended before, nothing is
// remembered. If too few masters confirm it, some may remember it nevertheless; of several results that of
// the lock with the largest fencing token counts.
//
// A result has at most MaxResult bytes, and is kept for at least a millisecond: otherwise, and for a lock on several keys, the
// lock is freed without it, and the error says so.
func (k *Lock) UnlockWith(result []byte, keep time.Duration) error {
	k.unlock.Do(func() {
		var wrong error
		switch {
		case len(result) > MaxResult:
			wrong = fmt.Errorf("redlock: the result has %d bytes: at most %d can be remembered", len(result), MaxResult)
		case keep < time.Millisecond:
			wrong = fmt.Errorf("redlock: the result is to be kept for %v: must be at least 1ms", keep)
		case len(k.whole) > 0:
			wrong = errors.New("redlock: a lock on several keys has no result")
		default:
			k.result = &protocol.Result{Data: string(result), Keep: keep, Fence: k.attempt.fence}
		}
		k.unlockErr = k.freeAll()
		if wrong != nil {
			k.unlockErr = errors.Join(wrong, k.unlockErr)
		}
	})
	return k.unlockErr
}

// DoneError is the error of a call with WithRecall for a key whose result is remembered. It matches ErrDone.
type DoneError struct {
	Result []byte        // of UnlockWith
	Fence  uint64        // the fencing token of the lock under which the work was done
	Keep   time.Duration // how long the result is still remembered, at least on one master
}

func (e *DoneError) Error() string { return ErrDone.Error() }

// Unwrap returns ErrDone.
func (e *DoneError) Unwrap() error { return ErrDone }

func (e *DoneError) clone() *DoneError {
	return &DoneError{Result: slices.Clone(e.Result), Fence: e.Fence, Keep: e.Keep}
}

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
	result, ok := a.fetch(ctx, last)
	if !ok || !a.spread(ctx, result) {
		return nil
	}
	return &DoneError{Result: []byte(result.Data), Fence: uint64(result.Fence), Keep: result.Keep}
}

// fetch asks one master after the other for the result with this fence: results are long, so that not all masters
// shall send theirs.
func (a *attempt) fetch(ctx context.Context, fence int64) (result *protocol.Result, ok bool) {
	for _, done := range a.done {
		if done.Reply.Fence != fence {
			continue
		}
		a.answers.expect(protocol.OpRecall, 1)
		a.push(&call{Command: protocol.Command{Op: protocol.OpRecall, Key: done.Key}, master: done.master, abandoned: &a.abandoned, to: a.answers})
		a.collect(ctx, a.locker.closing, time.Now().Add(a.timeout), 1, func(c *call, _ int) bool {
			if ok = c.Reply.Err == nil && c.Reply.Result != nil && c.Reply.Result.Fence == fence; ok {
				result = c.Reply.Result
			} else if c.Reply.Err != nil {
				a.fail(c.master, c.Reply.Err)
			}
			return true
		})
		if ok {
			break
		}
	}
	return result, ok
}

// spread ends the attempt, and has the masters remember a result that don't yet. It reports whether a quorum remembers it.
func (a *attempt) spread(ctx context.Context, result *protocol.Result) bool {
	a.answers.expect(protocol.OpRelease, 1)
	known := a.releaseWith(result, a.answers)
	if known < a.locker.quorum {
		a.collect(ctx, a.locker.closing, time.Now().Add(a.timeout), len(a.calls), func(c *call, pending int) bool {
			if c.remembers() {
				known++
			}
			return known >= a.locker.quorum || known+pending < a.locker.quorum
		})
	}
	return known >= a.locker.quorum
}

// releaseWith is release for a caller that waits no longer, and has the masters remember a result. It returns how many
// are known to remember it already.
func (a *attempt) releaseWith(result *protocol.Result, to receiver) (known int) {
	a.abandoned.Store(true)
	for _, c := range a.done {
		if c.Reply.Fence == result.Fence {
			known++
		}
	}
	answers := &resultAnswers{attempt: a, result: result, to: to, known: known}
	for i := range a.calls {
		switch c := &a.calls[i]; {
		case c.counted && c.Reply.Status == protocol.StatusDone && c.Reply.Fence == result.Fence, !c.counted && known >= a.locker.quorum: // it remembers it, or does so most likely
			release := a.releaseCall(i, false, to)
			a.push(&release)
		default:
			a.pushResult(i, result, answers, c.counted && c.Reply.Status == protocol.StatusDone)
		}
	}
	return known
}

// pushResult sends the release that has a master remember a result: if it frees the key, or in any case. A master that
// can't be asked now doesn't get it: it would be kept in memory.
func (a *attempt) pushResult(master int, result *protocol.Result, to receiver, anyway bool) {
	release := a.releaseCall(master, false, to)
	release.Alone, release.Result, release.Anyway = false, result, anyway
	release.forced = anyway && a.locker.streams[master].usable()
	a.push(&release)
}

// remembers reports whether a release that was answered has had the master remember its result.
func (c *call) remembers() bool {
	return c.Result != nil && (c.Reply.Status == protocol.StatusReleased || c.Anyway && c.Reply.Status != protocol.StatusNone)
}

// resultAnswers gets the answers to the releases that have the masters remember a result. Once it is certain that a
// quorum remembers it, and so that its holder had the lock until then, the masters that didn't have the key remember it too.
type resultAnswers struct {
	attempt *attempt
	result  *protocol.Result
	to      receiver

	mu      sync.Mutex
	known   int   // masters that remember the result
	lacking []int // masters that have answered and don't
}

func (r *resultAnswers) receive(c *call) {
	r.mu.Lock()
	switch {
	case c.remembers():
		r.known++
	case c.Reply.Err == nil && !c.Anyway:
		r.lacking = append(r.lacking, c.master)
	}
	var lacking []int
	if r.known >= r.attempt.locker.quorum {
		lacking, r.lacking = r.lacking, nil
	}
	r.mu.Unlock()
	for _, master := range lacking {
		r.attempt.pushResult(master, r.result, nil, true)
	}
	r.to.receive(c)
}
