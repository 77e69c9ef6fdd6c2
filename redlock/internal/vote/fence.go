package vote

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// refuseAhead rejects a grant whose fence is further ahead of another master's fence than correct clocks can explain. The clock of the grant's master
// was wrong when it granted this key before. While a third master is away, such a fence would become the lock's. Later fences might be below it, once
// a master has restarted and forgotten it: the restart guard is only long enough for fences near the clocks.
func (a *Attempt) refuseAhead() {
	if a.masters.MaxSkew == 0 {
		return // without a max skew nothing can be checked
	}
	// The sum of the skew, of the slack on both sides, and of how far a clock may be set back unnoticed.
	most := a.masters.MaxSkew + 2*protocol.FenceSlack + admission.SetBackTolerance
	least := slices.Min(a.fences())
	a.granted = slices.DeleteFunc(a.granted, func(c *link.Command) bool {
		ahead := time.Duration(c.Reply.Fence-least) * time.Microsecond
		if ahead > most {
			a.fail(c.Master, fmt.Errorf("its fence for this key is %v ahead of another master's, because its clock was wrong earlier: excluded for this key until its clock has passed that fence", ahead.Round(time.Millisecond)))
		}
		return ahead > most
	})
}

func (a *Attempt) fences() []int64 {
	fences := make([]int64, len(a.granted))
	for i, c := range a.granted {
		fences[i] = c.Reply.Fence
	}
	return fences
}

// Raise makes the given fence the lock's fence. It sends the fence to the masters that granted with a smaller one, unless a quorum has stored at
// least the given one already. A later lock gets a larger fence, because each of its quorums shares a master with a quorum that has stored this one.
func (a *Attempt) Raise(fence int64) {
	a.Fence = fence
	var low []*link.Command
	for _, c := range a.granted {
		if c.Reply.Fence < fence {
			low = append(low, c)
		}
	}
	if len(a.granted)-len(low) >= a.masters.Quorum {
		return
	}
	a.Replies.expect(protocol.OpExtend, 1)
	a.raising = len(low)
	for _, c := range low {
		a.push(a.extension(c.Master, time.Time{}, a.Replies))
	}
}

// Raised waits for the replies to Raise, and reports whether a quorum has stored the fence.
func (a *Attempt) Raised(ctx context.Context, within *Span) bool {
	if a.raising == 0 {
		return true
	}
	stored := len(a.granted) - a.raising
	a.Collect(ctx, a.masters.Closing, within, a.raising, func(c *link.Command, pending int) (done bool) {
		if c.Reply.Status == protocol.StatusGranted {
			stored++
		}
		return stored >= a.masters.Quorum || stored+pending < a.masters.Quorum
	})
	return stored >= a.masters.Quorum
}

// ChooseFence returns the fence of a lock from the fences with which masters have granted it, which it
// sorts: the quorum-th smallest. certain reports whether a quorum has stored as much.
//
// Why it is above the fence of every earlier lock: that fence was stored by a quorum, and every quorum of
// the later lock shares a master with it. So fewer than a quorum of the grants come from masters that lack
// the earlier fence, and all others are above it. The same holds between neighboring sets of masters, of
// which one has a server more, because their majorities meet too. For an odd number of masters this is
// also the (n-quorum+1)-th smallest, which would be enough within one set; for an even number that one is
// lower, and not safe between neighbors.
func ChooseFence(granted []int64, quorum int) (fence int64, certain bool) {
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
