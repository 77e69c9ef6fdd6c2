package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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

// store has the masters remember a long result, on its lane: those that have the attempt's token, and those that are known to have
// an older result. It returns how many remember it, as soon as that is a quorum or can't be one any more.
func (a *attempt) store(ctx context.Context, result *protocol.Result) (stored int) {
	stored, _ = a.remembering(result.Fence)
	r := a.locker.newRound(protocol.OpStore, 1) // not the attempt's, whose timer ends the lock meanwhile
	to := &storing{attempt: a, result: result, to: r.replies, stored: stored}
	sent := 0
	for i := range a.acquires {
		acquire := &a.acquires[i]
		done := acquire.Counted && acquire.Reply.Status == protocol.StatusDone
		if done && acquire.Reply.Fence == result.Fence {
			continue
		}
		sent++
		a.storeOn(i, result, done, to)
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

// storeOn has one master remember a result, on its lane: if it has the attempt's token or, with anyway, whoever has the key there.
func (a *attempt) storeOn(master int, result *protocol.Result, anyway bool, to link.Receiver) {
	c := &a.acquires[master]
	a.locker.laneOf(master, c.Key).Push(&link.Command{
		Command: protocol.Command{Op: protocol.OpStore, Key: c.Key, Token: c.Token, Ask: &protocol.Store{Result: result, Anyway: anyway}},
		Master:  master,
		To:      to,
	})
}

// storing gets the replies to a result on its lanes. The release, on the streams, may free a key before the result comes to that master.
// Once a quorum remembers the result, and so its holder had the lock until then, those masters get it once more, whoever has the key.
type storing struct {
	attempt *attempt
	result  *protocol.Result
	to      link.Receiver

	mu      sync.Mutex
	stored  int   // masters that remember the result
	lacking []int // masters that have answered and don't
}

// Receive takes the reply of one master.
func (s *storing) Receive(c *link.Command) {
	var again []int
	s.mu.Lock()
	if remembers(c) {
		s.stored++
	} else if c.Reply.Err == nil {
		s.lacking = append(s.lacking, c.Master)
	}
	if s.stored >= s.attempt.locker.quorum {
		again, s.lacking = s.lacking, nil
	}
	s.mu.Unlock()
	for _, master := range again {
		s.attempt.storeOn(master, s.result, true, nil)
	}
	s.to.Receive(c)
}

// releaseWith is release for a caller that waits no longer, and has the masters remember a short result.
func (a *attempt) releaseWith(result *protocol.Result, to link.Receiver) {
	a.abandoned.Store(true)
	for i := range a.acquires {
		c := &a.acquires[i]
		done := c.Counted && c.Reply.Status == protocol.StatusDone
		release := a.releaseOf(i, false, to)
		if !done || c.Reply.Fence != result.Fence {
			// A master that can't be asked now doesn't get it: it would be kept in memory.
			release.Alone, release.Ask = false, &protocol.Store{Result: result, Anyway: done}
			release.Forced = done && a.locker.streams[i].At(a.acquires[i].Key).Usable()
		}
		a.push(&release)
	}
}

// remembers reports whether a command that was answered has had the master remember its result.
func remembers(c *link.Command) bool {
	store, ok := c.Ask.(*protocol.Store)
	switch {
	case !ok || c.Reply.Err != nil:
		return false
	case c.Op == protocol.OpStore:
		return c.Reply.Status == protocol.StatusDone
	}
	return c.Reply.Status == protocol.StatusReleased || store.Anyway && c.Reply.Status != protocol.StatusNone
}

// recall returns the result that an attempt has met, or nil: if there is none, if another holder is doing the work again
// because a quorum hasn't heard of the result, or if it is unsure that later calls meet this one, too.
//
// A result that a quorum remembers is met by every quorum of replies. One that fewer remember is remembered by a
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
			a.locker.laneOf(done.Master, done.Key).Push(&link.Command{Command: protocol.Command{Op: protocol.OpRecall, Key: done.Key}, Master: done.Master, Abandoned: over, To: r.replies})
		}
		deadline := time.Now().Add(resultTime)
		if asked < len(from) {
			deadline = time.Now().Add(2 * a.locker.streams[from[asked].Master].At(from[asked].Key).MaxTimeout())
		}
		r.collect(ctx, a.locker.closing, deadline, asked-answered, func(c *link.Command, _ int) bool {
			answered++
			if found, ok := c.Reply.Answer.(*protocol.Result); ok && found.Fence == fence {
				result = found
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

// spread ends the attempt, and hands a result on to the masters that have answered and don't remember it yet. It reports whether a quorum
// remembers the result.
func (a *attempt) spread(ctx context.Context, result *protocol.Result) bool {
	known, lacking := a.remembering(result.Fence)
	if len(result.Data) > shortResult {
		if known < a.locker.quorum {
			ctx, cancel := context.WithDeadline(ctx, a.until())
			defer cancel()
			if a.store(ctx, result) < a.locker.quorum {
				return false
			}
		} else {
			for _, i := range lacking { // nobody waits for them; the holder had the lock until a quorum had its result, whoever has the key now
				a.storeOn(i, result, true, nil)
			}
		}
		a.release(nil, false)
		return true
	}
	a.replies.expect(protocol.OpRelease, 1)
	a.releaseWith(result, a.replies)
	if known < a.locker.quorum {
		a.collect(ctx, a.locker.closing, time.Now().Add(a.timeout), len(a.acquires), func(c *link.Command, pending int) bool {
			if remembers(c) {
				known++
			}
			return known >= a.locker.quorum || known+pending < a.locker.quorum
		})
	}
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
