package vote

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	// ResultTime is how long the storing or reading of a result may take.
	ResultTime = 10 * time.Second
	// ResultRoom bounds how many results one process stores or reads at a time. Short results that it stores don't count.
	ResultRoom = link.MaxResults
)

// EnterRoom waits until a further result may be stored or read, so that results take a bounded amount of memory. If it returns true, the caller must
// call LeaveRoom.
func (m *Masters) EnterRoom(ctx context.Context) bool {
	select {
	case m.room <- struct{}{}:
		return true
	case <-ctx.Done():
		m.refused.Add(1)
	case <-m.Closing:
	}
	return false
}

func (m *Masters) LeaveRoom() { <-m.room }

func (m *Masters) RefusedResults() uint64 { return m.refused.Load() }

func (m *Masters) laneOf(master int, key string) *link.Lane { return m.Streams[master].At(key).Lane }

// Store makes masters remember a long result, over their lanes. It asks the masters that may have the attempt's token, and the masters that are known
// to have an older result. It returns nil as soon as a quorum remembers the result. It returns a verdict if no quorum can remember it, or if none
// does in time.
func (a *Attempt) Store(ctx context.Context, result *protocol.Result) *Verdict {
	stored, _ := a.remembering(result.Fence)
	r := a.masters.NewRound(protocol.OpStore, 1) // a separate round, because the release needs the attempt's own round
	to := &storing{attempt: a, result: result, to: r.Replies, stored: stored}
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
	var failed []Failure
	within := NewSpan(ResultTime)
	r.Collect(ctx, a.masters.Closing, &within, sent, func(c *link.Command, pending int) bool {
		if remembers(c) {
			stored++
		} else if c.Reply.Err != nil {
			failed = append(failed, Failure{a.name(c.Master), c.Reply.Err})
		}
		return stored >= a.masters.Quorum || stored+pending < a.masters.Quorum
	})
	if stored >= a.masters.Quorum {
		return nil
	}
	return &Verdict{Answered: stored, Total: len(a.acquires), Failed: failed}
}

// storeOn sends a result to one master, over its lane. The master remembers the result if it has the attempt's token, or if anyway is true.
func (a *Attempt) storeOn(master int, result *protocol.Result, anyway bool, to link.Receiver) {
	c := &a.acquires[master]
	a.masters.laneOf(master, c.Key).Push(&link.Command{
		Command: protocol.Command{Op: protocol.OpStore, Key: c.Key, Given: c.Given, Token: c.Token, Ask: &protocol.Store{Result: result, Anyway: anyway}},
		Master:  master,
		To:      to,
	})
}

// storing receives the replies of the masters to which a result was sent. The release, on the stream, may free the key on a master before the result
// arrives there over the lane. Such a master refuses the result, because the token is gone. But once a quorum remembers the result, its holder is
// known to have had the lock until then. So these masters get the result once more, whoever has the key.
type storing struct {
	attempt *Attempt
	result  *protocol.Result
	to      link.Receiver

	mu      sync.Mutex
	stored  int   // how many masters remember the result
	lacking []int // the masters that have answered, but don't remember the result
}

func (s *storing) Receive(c *link.Command) {
	var again []int
	s.mu.Lock()
	if remembers(c) {
		s.stored++
	} else if c.Reply.Err == nil {
		s.lacking = append(s.lacking, c.Master)
	}
	if s.stored >= s.attempt.masters.Quorum {
		again, s.lacking = s.lacking, nil
	}
	s.mu.Unlock()
	for _, master := range again {
		s.attempt.storeOn(master, s.result, true, nil)
	}
	s.to.Receive(c)
}

// releaseWith is release for a caller that doesn't go on waiting. It also makes the masters remember a short result.
func (a *Attempt) releaseWith(result *protocol.Result, to link.Receiver) {
	a.abandoned.Store(true)
	for i := range a.acquires {
		c := &a.acquires[i]
		done := c.Counted && c.Reply.Status == protocol.StatusDone
		release := a.releaseOf(i, false, to)
		// The result of an earlier lock goes only to masters that have answered. A late master could get it after it was forgotten.
		asked := result.Fence == a.Fence || c.Counted && c.Reply.Err == nil
		if asked && (!done || c.Reply.Fence != result.Fence) {
			// A result for a master that can't be asked now would stay in this process's memory until the master can be asked.
			release.Fast = release.Alone && !done
			release.Alone, release.Ask = false, &protocol.Store{Result: result, Anyway: done}
			release.Forced = done && a.masters.Streams[i].At(a.acquires[i].Key).Usable()
		}
		a.push(&release)
	}
}

// remembers reports whether the master remembers the command's result, according to the reply.
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

// Recall returns the result that masters have reported to an attempt. It returns nil if there is none, if another holder is doing the work again
// because a quorum doesn't know the result, or if later calls may not find the result.
//
// If a quorum remembers a result, every quorum of replies reports it. If fewer masters remember it, Recall makes a quorum remember it before it
// returns. The attempt has the key on the other masters of its quorum, and frees the key there with the result. Of several results, the one with the
// largest fence counts, because the last holder has left it.
func (a *Attempt) Recall(ctx context.Context) *protocol.Result {
	if len(a.done) == 0 || a.answered() < a.masters.Quorum || a.othersHold() {
		return nil
	}
	var last int64
	for _, c := range a.done {
		last = max(last, c.Reply.Fence)
	}
	ctx, cancel := context.WithTimeout(ctx, ResultTime)
	defer cancel()
	result := a.brought(last)
	if result == nil {
		if !a.masters.EnterRoom(ctx) {
			return nil
		}
		defer a.masters.LeaveRoom()
		result = a.fetch(ctx, last)
	}
	if result == nil || !a.spread(ctx, result) {
		return nil
	}
	return result
}

// brought returns the result with this fence if it is short: a master's refusal has it.
func (a *Attempt) brought(fence int64) *protocol.Result {
	for _, done := range a.done {
		if result, ok := done.Reply.Answer.(*protocol.Result); ok && done.Reply.Fence == fence {
			return result
		}
	}
	return nil
}

// fetch asks one master after another for the result with this fence, because results are long. If a master is slow, it asks the next one without
// waiting longer.
func (a *Attempt) fetch(ctx context.Context, fence int64) (result *protocol.Result) {
	var from []*link.Command
	for _, done := range a.done {
		if done.Reply.Fence == fence {
			from = append(from, done)
		}
	}
	r := a.masters.NewRound(protocol.OpRecall, 1)
	asked, answered := 0, 0
	over := new(atomic.Bool)
	defer over.Store(true)
	for result == nil && answered < len(from) && ctx.Err() == nil {
		if asked < len(from) {
			done := from[asked]
			asked++
			a.masters.laneOf(done.Master, done.Key).Push(&link.Command{Command: protocol.Command{Op: protocol.OpRecall, Key: done.Key, Given: done.Given}, Master: done.Master, Abandoned: over, To: r.Replies})
		}
		within := NewSpan(ResultTime)
		if asked < len(from) {
			within = NewSpan(2 * a.masters.Streams[from[asked].Master].At(from[asked].Key).MaxTimeout())
		}
		r.Collect(ctx, a.masters.Closing, &within, asked-answered, func(c *link.Command, _ int) bool {
			answered++
			if found, ok := c.Reply.Answer.(*protocol.Result); ok && found.Fence == fence {
				result = found
			} else if c.Reply.Err != nil {
				a.fail(c.Master, c.Reply.Err)
			}
			return true
		})
		select {
		case <-a.masters.Closing:
			return nil
		default:
		}
	}
	return result
}

// spread ends the attempt, and makes the masters that have answered without the result remember it. It reports whether a quorum remembers the result.
func (a *Attempt) spread(ctx context.Context, result *protocol.Result) bool {
	known, lacking := a.remembering(result.Fence)
	if len(result.Data) > protocol.ShortResult {
		if known < a.masters.Quorum {
			ctx, cancel := context.WithDeadline(ctx, a.Until())
			defer cancel()
			if unstored := a.Store(ctx, result); unstored != nil {
				a.failed = append(a.failed, unstored.Failed...)
				return false
			}
		} else {
			for _, i := range lacking { // with anyway, because the result's holder had the lock until a quorum remembered it; no goroutine waits for these replies
				a.storeOn(i, result, true, nil)
			}
		}
		a.Release(false)
		return true
	}
	a.Replies.expect(protocol.OpRelease, 1)
	a.releaseWith(result, a.Replies)
	if known < a.masters.Quorum {
		within := NewSpan(a.Timeout)
		a.Collect(ctx, a.masters.Closing, &within, len(a.acquires), func(c *link.Command, pending int) bool {
			if remembers(c) {
				known++
			}
			return known >= a.masters.Quorum || known+pending < a.masters.Quorum
		})
	}
	return known >= a.masters.Quorum
}

// remembering returns how many masters have replied that they remember the result with this fence, and the other masters that have replied.
func (a *Attempt) remembering(fence int64) (known int, lacking []int) {
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
