package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// attempt is one try to take one key: one fresh token, and one reply from each master. A token is never
// reused, because a release that arrives late carries the token of its own attempt: it must not match the
// lock of a later one.
type attempt struct {
	round     // of the acquires, then of the extends that raise the fence, then of the release
	start     time.Time
	ttl       time.Duration
	ticket    int64 // the caller's, also when the acquire is sent without one
	timeout   time.Duration
	slot      uint16               // which is asked for
	slots     uint16               // how many there are
	offered   bool                 // it was offered to the call
	leader    int                  // the master that offers slots; -1 if there is none
	goesOn    bool                 // the next one asks for the slot that the leader has offered to this one
	waits     bool                 // a release has left the ticket
	several   bool                 // one of the attempts of a LockAll call: commands are queued for all keys before any is sent
	late      bool                 // masters have not answered in time
	mustPoll  bool                 // a master that refused will not wake this process
	acquires  []link.Command       // the acquires, by master
	lock      atomic.Pointer[Lock] // nil before it has won
	abandoned atomic.Bool          // commands that are still queued must not be sent

	fence   int64
	granted []*link.Command
	raising int              // masters that were sent a larger fence than the one they had stored
	held    []protocol.Reply // refusals: another token holds the key, or another process is next in line
	failed  []*MasterError   // masters that gave no usable reply
	done    []*link.Command  // refusals because a result is remembered
}

// severalMark ends the tokens of calls for several keys: what others meet with it may be given back at once.
const severalMark = "s"

// sendSoon sends the commands that push has queued for the keys of a LockAll call.
func (a *attempt) sendSoon() {
	if a.several {
		for _, s := range a.locker.streams {
			s.SendSoon()
		}
	}
}

// push sends a command. For a LockAll call it only queues it: sendSoon sends those for all keys together.
func (a *attempt) push(c *link.Command) {
	if s := a.locker.streams[c.Master]; a.several {
		s.Enqueue(c)
	} else {
		s.Push(c)
	}
}

// ring runs when the time of a round may be over, or that of the lock: between its rounds, the timer is the lock's.
func (a *attempt) ring() {
	if k := a.lock.Load(); k != nil {
		k.expire()
		k.watch() // it may have been renewed at the same time
	}
	a.replies.ring()
}

// extension returns the command that renews the lease on one master and raises the fence stored there to the
// lock's. A master that has lost the key may take it anew until refill; never if that is zero.
func (a *attempt) extension(master int, refill time.Time, to link.Receiver) *link.Command {
	c := a.acquires[master].Extension(a.fence, refill, to)
	raises := a.acquires[master].Counted && a.acquires[master].Reply.Fence != a.fence // each time, if the master's is larger
	c.Fast = a.ttl >= a.locker.fastFrom && !raises
	return c
}

// release frees the key on all masters that granted it, or may have. It doesn't wait: the streams keep the
// order and repeat what a master misses. The replies go to the receiver unless it is nil. If the caller
// waits on, the masters keep its ticket.
func (a *attempt) release(to link.Receiver, waiting bool) {
	a.abandoned.Store(true)
	a.waits = a.waits || waiting
	calls := make([]link.Command, len(a.acquires))
	for i := range calls {
		calls[i] = a.releaseOf(i, waiting, to)
		calls[i].Forced = i == a.leader && !a.goesOn && a.offer() > 0 // another may have the slot that it offers
		a.push(&calls[i])
	}
}

// enqueueRelease is release for a lock that is lost. The keeper has it sent.
func (a *attempt) enqueueRelease() {
	a.abandoned.Store(true)
	calls := make([]link.Command, len(a.acquires))
	for i, s := range a.locker.streams {
		calls[i] = a.releaseOf(i, false, nil)
		s.Enqueue(&calls[i])
	}
}

func (a *attempt) releaseOf(master int, waiting bool, to link.Receiver) link.Command {
	// whether, by all replies so far, nobody waited for the key when it was granted, nor does this call
	alone := !waiting && !a.waits && len(a.granted) > 0 && len(a.held) == 0 && !slices.ContainsFunc(a.granted, func(c *link.Command) bool { return !c.Reply.Alone })
	return a.acquires[master].Release(a.ticket, waiting, alone, to)
}

func (a *attempt) name(master int) string { return a.locker.nodeName(master, a.acquires[master].Key) }

// past reports whether t has passed on the monotonic clock or on the wall clock. The monotonic clock stands
// still while the host is suspended, but leases on the masters run on.
func past(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// until returns the end of the validity of a lock won by this attempt. It is counted from before the first
// command was sent, so that no master's lease can end earlier, and shortened by the drift of the clocks.
func (a *attempt) until() time.Time { return a.start.Add(a.ttl - admission.Drift(a.ttl)) }

// releaseTimeout returns how long the masters may take to answer a release now. The timeout of the attempt may include the time
// for making the connections, if it was the first.
func (a *attempt) releaseTimeout() (timeout time.Duration) {
	for i, s := range a.locker.streams {
		timeout = max(timeout, s.At(a.acquires[i].Key).Timeout())
	}
	return timeout
}

// confirmRelease waits for the masters' replies to a release until the result is certain. The error matches ErrLost if no quorum can have
// had the lock until the release.
//
// That a master has no key any more says so only until the end of the lock's validity: a release that was late finds that the lease has ended
// since. The same is true of one that is repeated because its reply was lost: the first may have freed the key. So nobody hears of repetitions,
// and a reply that was lost counts as one that might have confirmed the release.
func (a *attempt) confirmRelease(deadline, until time.Time) error {
	quorum := a.locker.quorum
	released, maybe, gone := 0, 0, error(nil) // maybe: masters that may have had the key until then
	var failed []*MasterError
	ending := a.collect(context.Background(), nil, deadline, len(a.acquires), func(c *link.Command, pending int) (done bool) {
		status := c.Reply.Status
		switch {
		case c.Reply.Err != nil:
			maybe++
			failed = append(failed, &MasterError{a.name(c.Master), c.Reply.Err})
		case status == protocol.StatusReleased:
			maybe++
			released++
		case status != protocol.StatusNotOwner && status != protocol.StatusExpired: // it was not sent: the master never had the key
		case past(until):
			maybe++
		case status == protocol.StatusNotOwner:
			gone = ErrNotOwner
		case gone == nil:
			gone = ErrExpired
		}
		return released >= quorum || gone != nil && maybe+pending < quorum
	})
	switch {
	case released >= quorum:
		return nil
	case ending == timeOver:
		return &QuorumError{Answered: released, Quorum: quorum, Total: len(a.acquires), Masters: failed, Err: link.ErrHung}
	case gone != nil && maybe < quorum:
		return becauseError{ErrLost, gone}
	}
	return &QuorumError{Answered: released, Quorum: quorum, Total: len(a.acquires), Masters: failed}
}

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
		if a.leader >= 0 && !a.acquires[a.leader].Counted { // it says which slot is free
			return certain && a.offered
		}
		lost := len(a.granted)+pending < quorum && (len(a.held) == 0 || a.tooFewLive() || a.othersRefuse()) // and it is known why
		// A result that a single master remembers is met, too, and handed to all that answer in time.
		if a.acquires[0].Recall && pending > 0 {
			return len(a.done) == 0 && lost
		}
		return certain || lost
	})
	if a.late = ending == timeOver; a.late {
		for i := range a.acquires {
			if !a.acquires[i].Counted {
				a.fail(i, a.locker.hung(i, a.acquires[i].Key, a.timeout))
			}
		}
	}
	// a slot that the leader hasn't offered to this call may be on offer to another one
	return ending != callerLeft && len(a.granted) >= quorum && len(a.done) == 0 && (a.offered || !a.leaderRefuses())
}

// leaderSays returns the reply of the leader, which is empty if there is no leader, or no reply yet.
func (a *attempt) leaderSays() *protocol.Reply {
	if a.leader < 0 || !a.acquires[a.leader].Counted {
		return &protocol.Reply{}
	}
	return &a.acquires[a.leader].Reply
}

// leaderRefuses reports whether the leader has said that others have, or are to have, the slot.
func (a *attempt) leaderRefuses() bool { return a.leaderSays().Status == protocol.StatusHeld }

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

// othersRefuse reports whether others are the reason why a call gets no lock: it would have no quorum even if all masters that haven't
// refused it granted, or a quorum has answered, and the leader says that others have all slots. Otherwise the masters that fail are, whoever
// has the rest.
func (a *attempt) othersRefuse() bool {
	return len(a.acquires)-len(a.held) < a.locker.quorum || a.leaderRefuses() && a.answered() >= a.locker.quorum
}

// tooFewLive reports whether so many masters failed that no caller at all could have reached a quorum.
func (a *attempt) tooFewLive() bool { return len(a.acquires)-len(a.failed) < a.locker.quorum }

// tooFew returns the error for a lost attempt if no quorum can be had now, as far as is known, whoever has the key; else nil. The replies
// that have decided the attempt may be too few to say so: then it counts whether the other masters are asked at all.
func (a *attempt) tooFew() *QuorumError {
	if err, excluded := a.locker.excluded().(*QuorumError); excluded {
		return err
	}
	usable := a.answered()
	for i, s := range a.locker.streams {
		if c := &a.acquires[i]; !c.Counted && !a.late && s.At(c.Key).State().Asked {
			usable++
		}
	}
	if usable >= a.locker.quorum {
		return nil
	}
	return a.lacks()
}

// absent returns that of the masters of a key which this attempt has lacked, or nil.
func (a *attempt) absent(key string) *absence {
	tooFew := a.tooFew()
	if tooFew == nil {
		return nil
	}
	since := time.Now()
	if known := a.locker.absent(key); known != nil && known.since.Before(since) {
		since = known.since
	}
	return &absence{since, tooFew}
}

// failure returns the error of a lost attempt. It is a *HeldError where others refuse, even if none of those has won, an *UnreadableError
// where a master remembers a result, and a *QuorumError where masters that give no usable reply are the reason.
func (a *attempt) failure() error {
	err := a.refused()
	if _, held := err.(*HeldError); held || len(a.done) == 0 {
		return err
	}
	return &UnreadableError{Masters: a.failed}
}

func (a *attempt) lacks() *QuorumError {
	return &QuorumError{Answered: a.answered(), Quorum: a.locker.quorum, Total: len(a.acquires), Masters: a.failed, RetryAfter: a.locker.guardsOver(a.failed)}
}

// guardsOver returns when so many masters will have passed their restart guards that there is a quorum; 0 if those aren't the reason why there
// is none.
func (l *Locker) guardsOver(failed []*MasterError) time.Duration {
	var guarded []time.Duration
	for _, f := range failed {
		var guard *admission.GuardError
		if errors.As(f.Err, &guard) {
			guarded = append(guarded, time.Until(guard.Until))
		}
	}
	slices.Sort(guarded)
	if missing := l.quorum - (len(l.streams) - len(failed)); 0 < missing && missing <= len(guarded) {
		return guarded[missing-1]
	}
	return 0
}

// refused is failure for an attempt that has met no result.
func (a *attempt) refused() error {
	if err := a.locker.excluded(); err != nil {
		return err
	}
	if a.tooFewLive() || !a.othersRefuse() {
		return a.lacks()
	}
	held := &HeldError{}
	if a.slots > 1 {
		held.Slots = int(a.slots)
	}
	for _, reply := range a.held {
		held.RetryAfter = max(held.RetryAfter, reply.TTL)
	}
	if a.leaderRefuses() { // it knows which slot may be free first
		held.RetryAfter = a.leaderSays().TTL
	}
	return held
}

// leaderPatience is how long a call waits for an offer before it looks whether there is still a leader, and whether that is the same.
const leaderPatience = time.Second

// patience returns how long to sleep before asking again if no wake-up comes: until so many of the leases
// that were met may have ended that a quorum is possible, at most a third of the lease of our own tickets.
func (a *attempt) patience() time.Duration {
	const early = time.Millisecond // Redis rounds a remaining TTL to whole milliseconds
	patience := a.ttl / 3
	switch {
	case a.leaderRefuses():
		return min(patience, leaderPatience, a.leaderSays().TTL+early)
	case a.lacksLeader():
		return min(patience, a.timeout)
	}
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

// mayHaveTicket reports whether a master may have the ticket of the call.
func (a *attempt) mayHaveTicket() bool {
	c := a.lock.Load().caller
	for i, s := range a.locker.streams {
		if s.At(c.key).MayHave(&c.tickets[i]) {
			return true
		}
	}
	return false
}

// withdraw takes the ticket of a call that has a slot away from the masters that have refused it: there it would keep others from theirs.
func (a *attempt) withdraw() {
	for i := range a.acquires {
		if c := &a.acquires[i]; c.Counted && c.Queue && c.Reply.Status == protocol.StatusHeld {
			a.push(c.Withdrawal(a.ticket))
		}
	}
}

// offer returns 1 + the slot that the leader offers in place of the one that was refused, or 0.
func (a *attempt) offer() uint16 { return a.leaderSays().Offer }

// lacksLeader reports whether no leader has said that no slot is free.
func (a *attempt) lacksLeader() bool { return a.slots > 1 && !a.leaderRefuses() }

// isFirst reports whether a lost attempt is for a slot that nobody else should ask for: the release of the one who had it is on its way to
// the masters that have refused.
func (a *attempt) isFirst() bool {
	granted := a.leaderSays().Status == protocol.StatusGranted
	return a.slots > 1 && len(a.held) > 0 && !a.tooFewLive() && (granted || a.offered && !a.leaderRefuses())
}

// vote returns the reply of one master.
func (a *attempt) vote(master int) Vote {
	v := Vote{Master: a.name(master)}
	for _, failed := range a.failed { // also one that has granted, and isn't believed
		if failed.Master == v.Master {
			v.Counted, v.Err = true, failed.Err
			return v
		}
	}
	if c := &a.acquires[master]; c.Counted {
		v.Counted, v.Granted, v.Done = true, c.Reply.Status == protocol.StatusGranted, c.Reply.Status == protocol.StatusDone
		if v.Granted {
			v.Fence = uint64(c.Reply.Fence)
		} else {
			v.Holder = shown(c.Reply.Holder)
		}
	}
	return v
}
