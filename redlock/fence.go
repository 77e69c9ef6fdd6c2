package redlock

import (
	"slices"
	"time"
)

// fenceSlack is how far a master's fence may lie from its own clock, on either side.
const fenceSlack = 100 * time.Millisecond

// fenceTTL is how long a master remembers its fence. It need only be above the skew between clocks
// and twice the slack: a forgotten fence starts again at the clock, which has moved on.
const fenceTTL = time.Minute

// nextFence is the fence that a master stores with a grant: above the last one, following the
// master's clock, and the client's proposal where that is near the clock. All are microseconds.
// acquire.lua does the same.
func nextFence(last, proposal, now int64) int64 {
	slack := fenceSlack.Microseconds()
	fence := max(last+1, now-slack)
	if proposal > fence && proposal <= now+slack {
		fence = proposal
	}
	return fence
}

// chooseFence gives the fence of a lock that these masters have granted with these fences, of n
// masters with this quorum, and sorts them; and whether it is certain: whether a quorum has stored that much.
//
// It is the (n-quorum+1)-th smallest. An earlier holder's fence was stored by a quorum; at least
// n-quorum+1 of the later holder's grants are not above its own fence; the two sets share a master,
// which answered more than the earlier fence.
func chooseFence(granted []int64, n, quorum int) (fence int64, certain bool) {
	if len(granted) < quorum {
		return 0, false
	}
	slices.Sort(granted)
	fence = granted[n-quorum]
	stored := 0
	for _, f := range granted {
		if f >= fence {
			stored++
		}
	}
	return fence, stored >= quorum
}
