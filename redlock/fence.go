package redlock

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// fenceLead returns how far the fence of a key on one master may be ahead of that on another as long as their
// clocks are right: by their skew, the slack on both sides, and by how far a clock may be set back
// unnoticed. It is 0 if that isn't known, because the skew isn't checked.
func (o *options) fenceLead() time.Duration {
	if o.maxSkew == 0 {
		return 0
	}
	return o.maxSkew + 2*protocol.FenceSlack + admission.SetBackTolerance
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
