package protocol

import "time"

// FenceSlack is how far a fence may be from the clock of the master that stores it, on either side.
const FenceSlack = 100 * time.Millisecond

// FenceTTL is the shortest time for which a master remembers a fence. Forgetting is safe because a fence is
// forgotten only when the master's own clock has passed it by this much, and the first fence after that
// starts at that clock less the slack: above the forgotten one, whatever the clocks of other masters show.
// It is longer than the slack so that a clock may be set back a little unnoticed.
const FenceTTL = 5 * time.Second

// FenceLife returns how long a master remembers a fence, which may be ahead of its clock if the proposal came
// from the clock of another master. fence and now, the time on its clock, are in microseconds.
func FenceLife(fence, now int64) time.Duration {
	return FenceTTL + time.Duration(max(fence-now, 0))*time.Microsecond
}

// NextFence returns the fence that a master stores with a grant: above the last one, near the master's
// clock, and equal to the proposal if that is near it too. All are in microseconds. acquire.lua has the same
// rule.
func NextFence(last, proposal, now int64) int64 {
	slack := FenceSlack.Microseconds()
	fence := max(last+1, now-slack)
	if proposal > fence && proposal <= now+slack {
		fence = proposal
	}
	return fence
}
