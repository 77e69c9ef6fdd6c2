package vote

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Verdict says why an attempt is lost, or why a release isn't confirmed.
type Verdict struct {
	Why        Why
	Answered   int // the number of masters whose replies count
	Total      int
	Failed     []Failure     // the masters that gave no usable reply
	RetryAfter time.Duration // for Held: how long the holder's lease can last; 0 if unknown
	Slots      int           // for Held: how many may hold the key, if more than one
}

type Why int

const (
	NoQuorum   Why = iota // too few masters have given a usable reply
	Held                  // other calls have votes for the key, so this call can't have a quorum
	Unreadable            // a master remembers a result, but the result can't be read, or a quorum can't be made to remember it
)

// Failure is the reason why one master gave no usable reply.
type Failure struct {
	Master string // its name, without credentials
	Err    error
}

// leaderSays returns the reply of the leader. The reply is empty if there is no leader, or if it hasn't replied.
func (a *Attempt) leaderSays() *protocol.Reply {
	if a.leader < 0 || !a.acquires[a.leader].Counted {
		return &protocol.Reply{}
	}
	return &a.acquires[a.leader].Reply
}

// leaderRefuses reports whether the leader has replied that other calls have the slot, or are about to get it.
func (a *Attempt) leaderRefuses() bool { return a.leaderSays().Status == protocol.StatusHeld }

// answered returns how many masters have given a usable reply.
func (a *Attempt) answered() int { return len(a.granted) + len(a.held) + len(a.done) }

func (a *Attempt) fail(master int, err error) {
	a.failed = append(a.failed, Failure{Master: a.name(master), Err: err})
}

// Split reports whether other calls have votes, but none of them is known to have a quorum. Then perhaps no call has won.
func (a *Attempt) Split() bool { return len(a.held) > 0 && !a.tooFewLive() && !a.othersHold() }

// othersHold reports whether a quorum of masters has refused in favor of the same holder.
func (a *Attempt) othersHold() bool {
	votes := make(map[string]int, len(a.held))
	for _, reply := range a.held {
		votes[reply.Holder]++
		if votes[reply.Holder] >= a.masters.Quorum {
			return true
		}
	}
	return false
}

// MetSeveral reports whether a master has refused in favor of a call for several keys.
func (a *Attempt) MetSeveral() bool {
	return slices.ContainsFunc(a.held, func(reply protocol.Reply) bool { return strings.HasSuffix(reply.Holder, SeveralMark) })
}

// othersRefuse reports whether other calls, rather than failed masters, are the reason why this call gets no lock. So many masters have refused that
// the call would have no quorum even if all other masters granted; or a quorum has answered, and the leader refuses.
func (a *Attempt) othersRefuse() bool {
	return len(a.acquires)-len(a.held) < a.masters.Quorum || a.leaderRefuses() && a.answered() >= a.masters.Quorum
}

// tooFewLive reports whether so many masters have failed that no call could reach a quorum.
func (a *Attempt) tooFewLive() bool { return len(a.acquires)-len(a.failed) < a.masters.Quorum }

// TooFew reports whether too few masters can vote now, whoever has the key. Until the timeout, a master that hasn't replied counts as usable if its
// stream sends acquires.
func (a *Attempt) TooFew() bool {
	usable := a.answered()
	for i, s := range a.masters.Streams {
		if c := &a.acquires[i]; !c.Counted && !a.Late && s.At(c.Key).State().Asked {
			usable++
		}
	}
	return usable < a.masters.Quorum
}

// CanWinBy reports whether an attempt can have a quorum before end. It can't if too many masters are excluded until after end, by the restart guard
// or after a jump of their clocks.
func (a *Attempt) CanWinBy(end time.Time) bool {
	left := len(a.acquires)
	for i := range a.acquires {
		c := &a.acquires[i]
		if !c.Counted { // this master may still answer
			continue
		}
		var guard *admission.GuardError
		switch err := c.Reply.Err; {
		case errors.As(err, &guard):
			if guard.Until.After(end) {
				left--
			}
		case errors.Is(err, admission.ErrClockJump):
			if !a.masters.Streams[i].At(c.Key).Clock.Trusted(end) {
				left--
			}
		}
	}
	return left >= a.masters.Quorum
}

func (a *Attempt) Verdict() Verdict {
	switch {
	case !a.tooFewLive() && a.othersRefuse():
		return a.refusal()
	case len(a.done) > 0:
		return Verdict{Why: Unreadable, Failed: a.failed}
	}
	return a.Lacks()
}

// Lacks returns the verdict that too few masters have voted.
func (a *Attempt) Lacks() Verdict {
	return Verdict{Why: NoQuorum, Answered: a.answered(), Total: len(a.acquires), Failed: a.failed}
}

func (a *Attempt) refusal() Verdict {
	v := Verdict{Why: Held}
	if a.Slots > 1 {
		v.Slots = int(a.Slots)
	}
	for _, reply := range a.held {
		v.RetryAfter = max(v.RetryAfter, reply.TTL)
	}
	if a.leaderRefuses() { // the leader's reply is about the slot that may become free first
		v.RetryAfter = a.leaderSays().TTL
	}
	return v
}

// leaderPatience is how long a call waits for an offer before it checks which master leads now.
const leaderPatience = time.Second

// Patience returns how long a call may sleep before it asks again if no wake-up comes. By then, enough of the known leases may have ended for a
// quorum. It is at most a third of the TTL, because the call's tickets last for a TTL.
func (a *Attempt) Patience() time.Duration {
	const early = time.Millisecond // Redis rounds a remaining TTL to whole milliseconds
	patience := a.TTL / 3
	switch {
	case a.leaderRefuses():
		return min(patience, leaderPatience, a.leaderSays().TTL+early)
	case a.LacksLeader():
		return min(patience, a.Timeout)
	}
	if missing := a.masters.Quorum - len(a.granted); 0 < missing && missing <= len(a.held) {
		rest := make([]time.Duration, len(a.held))
		for i, reply := range a.held {
			rest[i] = reply.TTL
		}
		slices.Sort(rest)
		patience = min(patience, rest[missing-1]+early)
	}
	return patience
}

// Offer returns 1 + the slot that the leader offers in place of the refused one, or 0.
func (a *Attempt) Offer() uint16 { return a.leaderSays().Offer }

// LacksLeader reports whether the key has several slots, and no leader has refused the call.
func (a *Attempt) LacksLeader() bool { return a.Slots > 1 && !a.leaderRefuses() }

// IsFirst reports whether this attempt, although it has lost, has its slot from the leader, granted or offered. Then the masters that refused the
// attempt are about to receive the release of the slot's former holder.
func (a *Attempt) IsFirst() bool {
	granted := a.leaderSays().Status == protocol.StatusGranted
	return a.Slots > 1 && len(a.held) > 0 && !a.tooFewLive() && (granted || a.offered && !a.leaderRefuses())
}

func (a *Attempt) MetResult() bool { return len(a.done) > 0 }

func (a *Attempt) Votes() int { return len(a.granted) }

func (a *Attempt) Granted() (masters []int) {
	for _, c := range a.granted {
		masters = append(masters, c.Master)
	}
	return masters
}

func (a *Attempt) Refusals() []protocol.Reply { return a.held }

// Ballot is the reply of one master to an attempt.
type Ballot struct {
	Master  string
	Counted bool   // the master answered in time, and before the attempt was decided; or it has failed
	Granted bool   // the master granted the key, with a fence
	Fence   uint64 // the fence of the grant
	Done    bool   // the master remembers a result
	Holder  string // if the master refused: the beginning of the token that has the key; empty if another process is next in the queue
	Err     error  // the reason why the master has given no vote
}

func (a *Attempt) Ballots() []Ballot {
	ballots := make([]Ballot, len(a.acquires))
	for i := range a.acquires {
		b := BallotOf(a.name(i), &a.acquires[i])
		for _, failed := range a.failed { // a master counts as failed, too, if it has granted the key with an impossible fence
			if failed.Master == b.Master {
				b = Ballot{Master: b.Master, Counted: true, Err: failed.Err}
			}
		}
		ballots[i] = b
	}
	return ballots
}

func BallotOf(master string, acquire *link.Command) Ballot {
	b := Ballot{Master: master}
	if !acquire.Counted {
		return b
	}
	reply := &acquire.Reply
	b.Counted, b.Granted, b.Done = true, reply.Status == protocol.StatusGranted, reply.Status == protocol.StatusDone
	if b.Granted {
		b.Fence = uint64(reply.Fence)
	} else {
		b.Holder = protocol.Shown(reply.Holder)
	}
	return b
}

// String returns the vote without the name of the master.
func (b Ballot) String() string {
	switch {
	case !b.Counted:
		return "hasn't answered"
	case b.Err != nil:
		return "has no vote: " + b.Err.Error()
	case b.Granted:
		return fmt.Sprintf("has granted it with fence %d", b.Fence)
	case b.Done:
		return "remembers a result"
	case b.Holder == "":
		return "has refused it for another process that waits"
	}
	return "has refused it for " + b.Holder
}
