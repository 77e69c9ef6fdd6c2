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
// was wrong when it granted this key earlier. Such a fence would become the lock's while a third master is away. Later fences might be smaller, once
// a master has restarted and forgotten that fence: the restart guard is only long enough for fences near the clocks.
func (a *Attempt) refuseAhead() {
	if a.masters.MaxSkew == 0 {
		return // without a max skew there is no limit to check
	}
	// The limit is the sum of the max skew, of the slack on both sides, and of how far a clock may be set back unnoticed.
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

// Raise makes fence the lock's fence. It sends the fence to the masters that granted with a smaller one, unless a quorum has already stored at least
// this fence. A later lock gets a larger fence, because each quorum that grants it shares a master with the quorum that has stored this one.
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

// ChooseFence returns the fence of a lock: the quorum-th smallest of the fences with which masters have granted it. It sorts them. certain reports
// whether a quorum has stored at least that fence.
//
// The fence is larger than the fence of every earlier lock, because a quorum has stored the earlier fence, and every quorum of the later lock shares
// a master with that quorum. So fewer than a quorum of the grants come from masters that lack the earlier fence, and all other grants have larger
// fences. The same is true of two sets of masters if one set has one server more, because their majorities meet, too. For an odd number of masters
// the fence is also the (n-quorum+1)-th smallest, which would be enough within one set. For an even number that one is smaller, and not safe between
// the two sets.
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
