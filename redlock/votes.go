package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// win counts replies until a quorum has granted and stored the lock's fence, a quorum is out of reach, the
// timeout has passed, or the caller leaves. It reports whether a quorum has granted; whether that quorum
// has also stored the fence is raise's business.
func (a *attempt) win(ctx context.Context, deadline time.Time) bool {
	quorum := a.locker.quorum
	ending := a.collect(ctx, a.locker.closing, deadline, len(a.acquires), func(c *link.Command, pending int) (done bool) {
		c.Counted = true
		certain := false
		switch {
		case c.Reply.Err != nil:
			a.fail(c.Master, c.Reply.Err)
		case c.Reply.Status == protocol.StatusGranted:
			if a.granted == nil {
				a.granted = make([]*link.Command, 0, len(a.acquires))
			}
			a.granted = append(a.granted, c)
			a.refuseAhead()
			a.fence, certain = chooseFence(a.fences(), quorum)
		case c.Reply.Status == protocol.StatusDone:
			a.done = append(a.done, c)
		default:
			a.held = append(a.held, c.Reply)
			a.mustPoll = a.mustPoll || !c.Queue || c.Polls || c.Reply.Polls
		}
		if len(a.done) > 0 { // it must be clear whether a quorum has answered, and that none of it is another holder's
			return len(a.held) == 0 && a.answered() >= quorum
		}
		if a.acquires[0].Recall && pending > 0 { // a result that a single master remembers is met, too, if that answers in time
			return len(a.granted)+pending < quorum
		}
		return certain || len(a.granted)+pending < quorum
	})
	if ending == timeOver {
		for i := range a.acquires {
			if !a.acquires[i].Counted {
				a.fail(i, a.locker.hung(i, a.acquires[i].Key, a.timeout))
			}
		}
	}
	return ending != callerLeft && len(a.granted) >= quorum && len(a.done) == 0
}

// answered returns how many masters have said how it is with the key.
func (a *attempt) answered() int { return len(a.granted) + len(a.held) + len(a.done) }

// refuseAhead rejects grants whose fence is further ahead of another master's than correct clocks can
// explain: that master's clock was wrong when it granted this key before. While a third master is away such
// a fence would become the lock's, and the restart guard, which relies on fences near the clocks, would be
// too short to keep later fences above it once a master has restarted and forgotten it.
func (a *attempt) refuseAhead() {
	if a.locker.maxSkew == 0 {
		return // it isn't checked: how far clocks may differ isn't known
	}
	// by the skew, the slack on both sides, and by how far a clock may be set back unnoticed
	most := a.locker.maxSkew + 2*protocol.FenceSlack + admission.SetBackTolerance
	least := slices.Min(a.fences())
	a.granted = slices.DeleteFunc(a.granted, func(c *link.Command) bool {
		ahead := time.Duration(c.Reply.Fence-least) * time.Microsecond
		if ahead > most {
			a.fail(c.Master, fmt.Errorf("its fence for this key is %v ahead of another master's, because its clock was wrong earlier: excluded for this key until its clock has passed that fence", ahead.Round(time.Millisecond)))
		}
		return ahead > most
	})
}

func (a *attempt) fences() []int64 {
	fences := make([]int64, len(a.granted))
	for i, c := range a.granted {
		fences[i] = c.Reply.Fence
	}
	return fences
}

func (a *attempt) fail(master int, err error) {
	a.failed = append(a.failed, &MasterError{Master: a.name(master), Err: err})
}

// raise makes the lock's fence this one: it is sent to the masters that granted with a smaller one, unless
// a quorum has stored as much already. A later lock gets a larger fence only because every quorum meets
// a master that has stored this one.
func (a *attempt) raise(fence int64) {
	a.fence = fence
	var low []*link.Command
	for _, c := range a.granted {
		if c.Reply.Fence < fence {
			low = append(low, c)
		}
	}
	if len(a.granted)-len(low) >= a.locker.quorum {
		return
	}
	a.replies.expect(protocol.OpExtend, 1)
	a.raising = len(low)
	for _, c := range low {
		a.push(a.extension(c.Master, time.Time{}, a.replies))
	}
}

// raised waits for the replies to raise, and reports whether a quorum has stored the fence.
func (a *attempt) raised(ctx context.Context, deadline time.Time) bool {
	if a.raising == 0 {
		return true
	}
	stored := len(a.granted) - a.raising
	a.collect(ctx, a.locker.closing, deadline, a.raising, func(c *link.Command, pending int) (done bool) {
		if c.Reply.Status == protocol.StatusGranted {
			stored++
		}
		return stored >= a.locker.quorum || stored+pending < a.locker.quorum
	})
	return stored >= a.locker.quorum
}

// split reports whether the refusals name several holders, none of which has a quorum: perhaps nobody won.
func (a *attempt) split() bool { return len(a.held) > 0 && !a.tooFewLive() && !a.othersHold() }

// othersHold reports whether a quorum has refused in favor of one holder.
func (a *attempt) othersHold() bool {
	votes := make(map[string]int, len(a.held))
	for _, reply := range a.held {
		votes[reply.Holder]++
		if votes[reply.Holder] >= a.locker.quorum {
			return true
		}
	}
	return false
}

// metSeveral reports whether a master has refused in favor of a call for several keys.
func (a *attempt) metSeveral() bool {
	return slices.ContainsFunc(a.held, func(reply protocol.Reply) bool { return strings.HasSuffix(reply.Holder, severalMark) })
}

// tooFewLive reports whether so many masters failed that no caller at all could have reached a quorum.
func (a *attempt) tooFewLive() bool { return len(a.acquires)-len(a.failed) < a.locker.quorum }

// failure returns the error of a lost attempt. It is a *HeldError where masters refused in favor of others,
// even if none of those has won, an *UnreadableError where a master remembers a result, and a *QuorumError for masters that give
// no usable reply.
func (a *attempt) failure() error {
	err := a.refused()
	if _, held := err.(*HeldError); held || len(a.done) == 0 {
		return err
	}
	return &UnreadableError{Masters: a.failed}
}

// refused is failure for an attempt that has met no result.
func (a *attempt) refused() error {
	if err := a.locker.heart.refusal(); err != nil {
		return &QuorumError{Quorum: a.locker.quorum, Err: err}
	}
	if a.tooFewLive() || len(a.held) == 0 {
		err := &QuorumError{Answered: a.answered(), Quorum: a.locker.quorum, Total: len(a.acquires), Masters: a.failed}
		var guarded []time.Duration
		for _, failed := range a.failed {
			var guard *admission.GuardError
			if errors.As(failed.Err, &guard) {
				guarded = append(guarded, time.Until(guard.Until))
			}
		}
		slices.Sort(guarded)
		if missing := a.locker.quorum - (len(a.acquires) - len(a.failed)); 0 < missing && missing <= len(guarded) {
			err.RetryAfter = guarded[missing-1]
		}
		return err
	}
	held := &HeldError{}
	if a.slots > 1 {
		held.Slots = int(a.slots)
	}
	for _, reply := range a.held {
		held.RetryAfter = max(held.RetryAfter, reply.TTL)
	}
	return held
}

// patience returns how long to sleep before asking again if no wake-up comes: until so many of the leases
// that were met may have ended that a quorum is possible, at most a third of the lease of our own tickets.
func (a *attempt) patience() time.Duration {
	const early = time.Millisecond // Redis rounds a remaining TTL to whole milliseconds
	patience := a.ttl / 3
	if missing := a.locker.quorum - len(a.granted); 0 < missing && missing <= len(a.held) {
		rest := make([]time.Duration, len(a.held))
		for i, reply := range a.held {
			rest[i] = reply.TTL
		}
		slices.Sort(rest)
		patience = min(patience, rest[missing-1]+early)
	}
	return patience
}

// chooseFence returns the fence of a lock from the fences with which masters have granted it, which it
// sorts: the quorum-th smallest. certain reports whether a quorum has stored as much.
//
// Why it is above the fence of every earlier lock: that fence was stored by a quorum, and every quorum of
// the later lock shares a master with it. So fewer than a quorum of the grants come from masters that lack
// the earlier fence, and all others are above it. The same holds between neighboring sets of masters, of
// which one has a server more, because their majorities meet too. For an odd number of masters this is
// also the (n-quorum+1)-th smallest, which would be enough within one set; for an even number that one is
// lower, and not safe between neighbors.
func chooseFence(granted []int64, quorum int) (fence int64, certain bool) {
	if len(granted) < quorum {
		return 0, false
	}
	slices.Sort(granted)
	fence = granted[quorum-1]
	stored := 0
	for _, f := range granted {
		if f >= fence {
			stored++
		}
	}
	return fence, stored >= quorum
}

// outage is how long a call with a deadline waits for masters that refuse every connection.
const outage = time.Second

// hopeless reports whether no quorum can be had before the deadline of ctx: too many masters are excluded
// beyond it, by the restart guard or after a jump of the clock, or no connection to them could be made for
// an outage, throughout which this call has waited. A master that hangs may still answer. Without a
// deadline there is always hope.
func (t *contender) hopeless(ctx context.Context, a *attempt) bool {
	end, ends := ctx.Deadline()
	if !ends {
		return false
	}
	waited := time.Since(t.callers[0].began)
	left := len(a.acquires)
	for i := range a.acquires {
		c, s := &a.acquires[i], t.locker.streams[i]
		if !c.Counted { // it may still answer
			continue
		}
		var guard *admission.GuardError
		switch err := c.Reply.Err; {
		case errors.As(err, &guard):
			if guard.Until.After(end) {
				left--
			}
		case errors.Is(err, admission.ErrClockJump):
			if !s.Clock.Trusted(end) {
				left--
			}
		case errors.Is(err, protocol.ErrUnreachable):
			if min(waited, s.Unconnected()) >= outage {
				left--
			}
		}
	}
	return left < t.locker.quorum
}
