package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// MaxResult is the largest number of bytes of a result.
const MaxResult = protocol.MaxResult

const (
	shortResult = 4 << 10          // bytes that may go with a lock's own commands
	resultTime  = 10 * time.Second // for which a result may be under way
	resultRoom  = link.MaxResults  // results that one Locker stores or reads at a time, beside the short ones that it stores
)

var (
	errNoRoom    = fmt.Errorf("%w: %d others are being stored or read, and it is not remembered", ErrNoRoom, resultRoom)
	errNotStored = errors.New("the result could not be stored")
)

// enterRoom waits until a result may be stored or read: so much memory they take at most, at once. The caller must call leaveRoom.
func (l *Locker) enterRoom(ctx context.Context) bool {
	select {
	case l.room <- struct{}{}:
		return true
	case <-ctx.Done():
		l.refused.Add(1)
	case <-l.closing:
	}
	return false
}

// laneOf returns the lane for the results of a key on a master.
func (l *Locker) laneOf(master int, key string) *link.Lane { return l.streams[master].ForKey(key).Lane }

func (l *Locker) leaveRoom() { <-l.room }

// UnlockWith is Unlock that has the masters remember a result for the key, so that no call with WithRecall can take the lock in
// between: the command that frees the key on a master stores a short result there, and one of more than 4 KiB is stored by a
// quorum before the key is freed, for which the lock is held for up to 10 seconds more. Such calls fail with a *DoneError, which
// has the result, for as long as it is kept. Once does all this in one call.
//
// If the error is nil, a quorum of the masters remembers the result, and so does every later call with WithRecall, unless
// so many masters lose their data that no quorum of those that have it is left. If the lock had ended before, nothing is
// remembered. If too few masters confirm it, some may remember it nevertheless; of several results that of
// the lock with the largest fencing token counts.
//
// A result has at most MaxResult bytes, and is kept for at least a millisecond: otherwise, and for a lock on several keys or with a concurrency above 1, the
// lock is freed without it, and the error says so.
func (k *Lock) UnlockWith(result []byte, keep time.Duration) error {
	k.unlock.Do(func() {
		var wrong error
		switch {
		case len(result) > MaxResult:
			wrong = fmt.Errorf("redlock: the result has %d bytes: at most %d can be remembered", len(result), MaxResult)
		case checkKeep(keep) != nil:
			wrong = checkKeep(keep)
		case k.attempt.slots > 1:
			wrong = fmt.Errorf("%w: a result needs a lock with one holder", ErrConcurrency)
		case len(k.whole) > 0:
			wrong = errors.New("redlock: a lock on several keys has no result")
		default:
			k.result = &protocol.Result{Data: string(result), Keep: keep, Fence: k.attempt.fence}
			if len(result) > shortResult { // it would stand in the way of locks
				wrong = k.store()
				k.result = nil
			}
		}
		k.unlockErr = k.release()
		if wrong != nil {
			k.unlockErr = errors.Join(wrong, k.unlockErr)
		}
	})
	return k.unlockErr
}

func checkKeep(keep time.Duration) error {
	if keep < time.Millisecond {
		return fmt.Errorf("redlock: the result is to be kept for %v: must be at least 1ms", keep)
	}
	return nil
}

// store has the masters remember the result on the lane for results, while the lock is held and renewed.
func (k *Lock) store() error {
	a := k.attempt
	if k.Err() != nil { // a lost lock leaves nothing
		return nil
	}
	ctx, cancel := context.WithTimeout(k.ctx, resultTime)
	defer cancel()
	if !a.locker.enterRoom(ctx) {
		return errNoRoom
	}
	defer a.locker.leaveRoom()
	a.failed = nil
	if stored := a.store(ctx, k.result); stored < a.locker.quorum && k.Err() == nil {
		return &QuorumError{Answered: stored, Quorum: a.locker.quorum, Total: len(a.acquires), Masters: a.failed, Err: errNotStored}
	}
	return nil
}

// store has the masters remember a long result, on its lane: those that have the attempt's token, and those that are known to have
// an older result. It returns how many remember it, as soon as that is a quorum or can't be one any more.
func (a *attempt) store(ctx context.Context, result *protocol.Result) (stored int) {
	stored, _ = a.remembering(result.Fence)
	r := a.locker.newRound(protocol.OpStore, 1) // not the attempt's, whose timer ends the lock meanwhile
	replies := &resultReplies{attempt: a, result: result, to: r.replies, known: stored}
	sent := 0
	for i := range a.acquires {
		acquire := &a.acquires[i]
		done := acquire.Counted && acquire.Reply.Status == protocol.StatusDone
		if done && acquire.Reply.Fence == result.Fence {
			continue
		}
		sent++
		a.locker.laneOf(i, acquire.Key).Push(&link.Command{
			Command: protocol.Command{Op: protocol.OpStore, Key: acquire.Key, Token: acquire.Token, Result: result, Anyway: done},
			Master:  i,
			To:      replies,
		})
	}
	r.collect(ctx, a.locker.closing, time.Now().Add(resultTime), sent, func(c *link.Command, pending int) bool {
		if remembers(c) {
			stored++
		} else if c.Reply.Err != nil {
			a.fail(c.Master, c.Reply.Err)
		}
		return stored >= a.locker.quorum || stored+pending < a.locker.quorum
	})
	return stored
}

// releaseWith is release for a caller that waits no longer, and has the masters remember a short result.
func (a *attempt) releaseWith(result *protocol.Result, to link.Receiver) {
	a.abandoned.Store(true)
	known, _ := a.remembering(result.Fence)
	replies := &resultReplies{attempt: a, result: result, to: to, known: known}
	for i := range a.acquires {
		c := &a.acquires[i]
		done := c.Counted && c.Reply.Status == protocol.StatusDone
		release := a.releaseOf(i, false, replies)
		if done && c.Reply.Fence == result.Fence {
			release.To = to
		} else {
			// A master that can't be asked now doesn't get it: it would be kept in memory.
			release.Alone, release.Result, release.Anyway = false, result, done
			release.Forced = done && a.locker.streams[i].Usable()
		}
		a.push(&release)
	}
}

// remembers reports whether a command that was answered has had the master remember its result.
func remembers(c *link.Command) bool {
	switch {
	case c.Result == nil || c.Reply.Err != nil:
		return false
	case c.Op == protocol.OpStore:
		return c.Reply.Status == protocol.StatusDone
	}
	return c.Reply.Status == protocol.StatusReleased || c.Anyway && c.Reply.Status != protocol.StatusNone
}

// resultReplies gets the replies to the commands that have the masters remember a result. Once it is certain that a
// quorum remembers it, and so that its holder had the lock until then, the other masters get it in the background.
type resultReplies struct {
	attempt *attempt
	result  *protocol.Result
	to      link.Receiver

	mu      sync.Mutex
	known   int   // masters that remember the result
	lacking []int // masters that have answered and don't
}

func (r *resultReplies) Receive(c *link.Command) {
	r.mu.Lock()
	if remembers(c) {
		r.known++
	} else {
		r.lacking = append(r.lacking, c.Master)
	}
	var lacking []int
	if r.known >= r.attempt.locker.quorum {
		lacking, r.lacking = r.lacking, nil
	}
	r.mu.Unlock()
	r.attempt.locker.late.add(c.Key, r.result, lacking...)
	r.to.Receive(c)
}
