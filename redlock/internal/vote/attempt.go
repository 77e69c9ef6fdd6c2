package vote

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Attempt is one try to take one key: one fresh token, and one reply from each master. A token is never reused. A late release carries the token of
// its own attempt, and must not match the lock of a later attempt.
type Attempt struct {
	Round   // collects the replies to the acquires, then to the extends that raise the fence, then to the release
	Start   time.Time
	TTL     time.Duration
	Timeout time.Duration // how long masters may take to answer
	Slot    uint16
	Slots   uint16
	Fence   int64
	Late    bool // some masters have not answered in time
	Unwoken bool // a master that refused the acquire will not wake this process

	ticket    int64 // the call's ticket, even if the acquire is sent without it
	offered   bool  // the leader has offered the slot to the call
	leader    int   // the index of the master that offers slots; -1 if there is none
	goesOn    bool  // the call's next attempt asks for the slot that the leader has offered
	waits     bool  // a release of this attempt has left the ticket on masters
	several   bool  // the call has several keys, so the commands for all keys are queued before any is sent
	acquires  []link.Command
	tickets   []link.TicketState
	abandoned atomic.Bool // the streams drop acquires and extends that are still queued

	granted []*link.Command
	raising int              // how many masters were sent a larger fence than their own
	held    []protocol.Reply // refusals, because another token holds the key, or another process is next in the queue
	failed  []Failure        // masters that gave no usable reply
	done    []*link.Command  // refusals because a result is remembered
}

type Ask struct {
	Key       string
	Given     string // see protocol.Command
	TTL       time.Duration
	Start     time.Time          // the same for all keys of a call
	Fence     int64              // the proposed fence, from the masters' clocks
	Process   string             // the name in the masters' queues: the process's or, for a key with several holders, the call's
	Ticket    int64              // 0 if the ticket isn't known
	Tickets   []link.TicketState // the state of the call's ticket on each master
	Queue     bool               // the masters that refuse the call, and can wake it, put it into their queues
	Fast      bool               // as far as is known, no other call wants the key
	Recall    bool               // the call fails if masters remember a result
	Several   bool               // the call has several keys
	Slots     int
	Slot      func() (slot uint16, offered bool) // chooses one of several slots; offered reports whether the leader has offered it
	Former    *Attempt                           // the attempt that the same commands release: its lock is handed on, or it was lost; or nil
	TakesOver bool                               // Former is a lost attempt of the same call
}

// Ask sends an acquire to all masters. If Former is set, each command first releases that attempt on the master, and Former's inbox gets the replies
// to the releases.
func (m *Masters) Ask(ask Ask) *Attempt {
	former := ask.Former
	a := &Attempt{
		Round:    m.NewRound(protocol.OpAcquire, m.Decisive()),
		Start:    ask.Start,
		TTL:      ask.TTL,
		ticket:   ask.Ticket,
		tickets:  ask.Tickets,
		several:  ask.Several,
		Slots:    uint16(ask.Slots),
		leader:   -1,
		acquires: make([]link.Command, len(m.Streams)),
	}
	acquire := protocol.Command{Op: protocol.OpAcquire, Key: ask.Key, Given: ask.Given, Token: m.Random(), TTL: ask.TTL, Fence: ask.Fence, Process: ask.Process, Ticket: ask.Ticket, Recall: ask.Recall}
	if ask.Slots > 1 {
		a.leader = m.leader(ask.Key)
		if former == nil {
			a.Slot, a.offered = ask.Slot()
		} else {
			a.Slot, a.offered = former.Slot, ask.TakesOver && former.IsFirst()
		}
		acquire.Offered, acquire.Slots = a.offered, a.Slots
		acquire.Key = protocol.SlotKey(ask.Key, int(a.Slot))
	}
	if ask.Several {
		acquire.Token += SeveralMark
	}
	if !ask.Queue {
		acquire.Ticket = protocol.TryTicket
	}
	var releases []link.Command
	if former != nil {
		if ask.TakesOver {
			former.ticket = 0 // the release of the former attempt must not remove the call's ticket
		}
		acquire.Former = former.Token()
		former.abandoned.Store(true)
		former.Replies.expect(protocol.OpRelease, m.Decisive())
		releases = make([]link.Command, len(m.Streams))
	}
	for i, s := range m.Streams {
		a.acquires[i] = link.NewAcquire(acquire, i, &a.abandoned, &ask.Tickets[i], a.Replies)
		a.acquires[i].Queue = ask.Queue && s.Subscribed() // a master can't wake a process that isn't subscribed
		a.acquires[i].Fast = ask.Fast && former == nil && ask.TTL >= m.FastFrom
		a.acquires[i].Leads = i == a.leader
		if former != nil {
			releases[i] = former.releaseOf(i, false, former.Replies)
			a.acquires[i].First(&releases[i])
		}
		a.push(&a.acquires[i])
		a.Timeout = max(a.Timeout, s.At(ask.Key).Patience())
	}
	return a
}

func (a *Attempt) Token() string { return a.acquires[0].Token }

// SeveralMark ends the tokens of calls for several keys. A call that is refused in favor of such a token may ask again soon, because its holder may
// release the key at once.
const SeveralMark = "s"

// SendSoon sends the commands that a call for several keys has queued.
func (a *Attempt) SendSoon() {
	if a.several {
		a.masters.SendSoon()
	}
}

// push sends a command. For a call with several keys it only queues the command, and SendSoon sends the commands for all keys together.
func (a *Attempt) push(c *link.Command) {
	if s := a.masters.Streams[c.Master]; a.several {
		s.Enqueue(c)
	} else {
		s.Push(c)
	}
}

// EnqueueRenewal queues a renewal of the lease for each master. The renewal also raises a lower fence to the lock's. Masters.SendSoon sends it. A
// master that has lost the key may take it again until refill.
func (a *Attempt) EnqueueRenewal(refill time.Time, to link.Receiver) {
	for i, s := range a.masters.Streams {
		s.Enqueue(a.extension(i, refill, to))
	}
}

// extension returns the command that renews the lease on one master and raises the master's fence to the lock's. If refill is zero, a master that has
// lost the key doesn't take it again.
func (a *Attempt) extension(master int, refill time.Time, to link.Receiver) *link.Command {
	c := a.acquires[master].Extension(a.Fence, refill, to)
	raises := a.acquires[master].Counted && a.acquires[master].Reply.Fence != a.Fence // true even if the master's fence is larger
	c.Fast = a.TTL >= a.masters.FastFrom && !raises
	return c
}

// Release frees the key on all masters that granted it, or may have. It doesn't wait: the streams keep the commands in order, and repeat a release
// that a master misses. If waiting is true, the masters keep the call's ticket.
func (a *Attempt) Release(waiting bool) { a.release(nil, waiting) }

// ReleaseForOffer is Release for a call whose next attempt asks for the slot that the leader has offered to this one.
func (a *Attempt) ReleaseForOffer() {
	a.goesOn = true
	a.release(nil, true)
}

// Free is Release for Unlock. ConfirmRelease waits for the replies. If result isn't nil, it must be short, and the masters remember it.
func (a *Attempt) Free(result *protocol.Result) {
	a.Replies.expect(protocol.OpRelease, a.masters.Decisive())
	if result != nil {
		a.releaseWith(result, a.Replies)
	} else {
		a.release(a.Replies, false)
	}
}

// release is Release with a receiver for the replies, which may be nil.
func (a *Attempt) release(to link.Receiver, waiting bool) {
	a.abandoned.Store(true)
	a.waits = a.waits || waiting
	calls := make([]link.Command, len(a.acquires))
	for i := range calls {
		calls[i] = a.releaseOf(i, waiting, to)
		calls[i].Forced = i == a.leader && !a.goesOn && a.Offer() > 0 // the leader must withdraw its offer of a slot
		a.push(&calls[i])
	}
}

// EnqueueRelease is Release for a lost lock. Masters.SendSoon sends the commands.
func (a *Attempt) EnqueueRelease() {
	a.abandoned.Store(true)
	calls := make([]link.Command, len(a.acquires))
	for i, s := range a.masters.Streams {
		calls[i] = a.releaseOf(i, false, nil)
		s.Enqueue(&calls[i])
	}
}

func (a *Attempt) releaseOf(master int, waiting bool, to link.Receiver) link.Command {
	// alone is true if, by all replies so far, no process waited for the key when it was granted, and this call doesn't wait either
	alone := !waiting && !a.waits && len(a.granted) > 0 && len(a.held) == 0 && !slices.ContainsFunc(a.granted, func(c *link.Command) bool { return !c.Reply.Alone })
	return a.acquires[master].Release(a.ticket, waiting, alone, to)
}

func (a *Attempt) name(master int) string { return a.masters.Name(master, a.acquires[master].Key) }

// Until returns the end of the validity of a lock won by this attempt. The TTL counts from before the first command was sent, so that no master's
// lease ends earlier. The drift of the clocks shortens it.
func (a *Attempt) Until() time.Time { return a.Start.Add(a.TTL - admission.Drift(a.TTL)) }

// ReleaseTimeout returns how long the masters may take to answer a release now. The attempt's own Timeout may be longer, because it may include the
// time to make connections.
func (a *Attempt) ReleaseTimeout() (timeout time.Duration) {
	for i, s := range a.masters.Streams {
		timeout = max(timeout, s.At(a.acquires[i].Key).Timeout())
	}
	return timeout
}

// Released is the result of a release.
type Released struct {
	Gone        protocol.Status // StatusNotOwner or StatusExpired, if no quorum had the lock any more when it was released; otherwise StatusNone
	Unconfirmed *Verdict        // nil if a quorum has confirmed the release, or the lock was gone
	Hung        bool            // some masters have not answered in time; only with Unconfirmed
}

// ConfirmRelease waits for the masters' replies to a release until the result is certain.
//
// A master may reply that the key is gone. That reply proves a loss only before the end of the lock's validity, because afterwards the lease may have
// ended normally. It proves nothing if the release was repeated after a lost reply, because the first release may have freed the key. So replies to
// repetitions don't count here, and a lost reply counts as a possible confirmation.
//
// Masters that are excluded because they have lost their data need not reply. If only a minority is left, the lock was lost.
func (a *Attempt) ConfirmRelease(within *Span, until time.Time) Released {
	quorum := a.masters.Quorum
	released, maybe, gone := 0, 0, protocol.StatusNone // maybe counts the masters that may have had the key until the release
	var failed []Failure
	ending := a.Collect(context.Background(), nil, within, len(a.acquires), func(c *link.Command, pending int) (done bool) {
		status := c.Reply.Status
		switch {
		case c.Reply.Err != nil:
			maybe++
			failed = append(failed, Failure{a.name(c.Master), c.Reply.Err})
		case status == protocol.StatusReleased:
			maybe++
			released++
		case status != protocol.StatusNotOwner && status != protocol.StatusExpired: // this release was not sent, because the master never had the key
		case Past(until):
			maybe++
		case status == protocol.StatusNotOwner, gone == protocol.StatusNone:
			gone = status
		}
		return released >= quorum || gone != protocol.StatusNone && maybe+pending < quorum
	})
	switch {
	case released >= quorum:
		return Released{}
	case ending != TimeOver && gone != protocol.StatusNone && maybe < quorum:
		return Released{Gone: gone}
	}
	left := 0
	for i, s := range a.masters.Streams {
		if !s.At(a.acquires[i].Key).Lost() {
			left++
		}
	}
	if left < quorum {
		return Released{Gone: protocol.StatusExpired}
	}
	return Released{Unconfirmed: &Verdict{Answered: released, Total: len(a.acquires), Failed: failed}, Hung: ending == TimeOver}
}

// Win counts replies until the key is certainly won or lost, the timeout has passed, or the caller leaves. It reports whether a quorum has granted
// the key, no master remembers a result, and the leader of the key's slots doesn't refuse. The fence may still have to be stored on a quorum: see
// Raise and Raised.
func (a *Attempt) Win(ctx context.Context, within *Span) bool {
	quorum := a.masters.Quorum
	ending := a.Collect(ctx, a.masters.Closing, within, len(a.acquires), func(c *link.Command, pending int) (done bool) {
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
			a.Fence, certain = ChooseFence(a.fences(), quorum)
		case c.Reply.Status == protocol.StatusDone:
			a.done = append(a.done, c)
		default:
			a.held = append(a.held, c.Reply)
			a.Unwoken = a.Unwoken || !c.Queue || a.ownLeft(c.Reply.Holder)
		}
		if a.leader >= 0 && !a.acquires[a.leader].Counted { // wait for the leader, which knows the free slots
			return certain && a.offered
		}
		lost := len(a.granted)+pending < quorum && (len(a.held) == 0 || a.tooFewLive() || a.othersRefuse()) // the attempt is lost, and the reason is known
		// One master that remembers a result is enough, so wait for the replies of all masters.
		if a.acquires[0].Recall && pending > 0 {
			return len(a.done) == 0 && lost
		}
		return certain || lost
	})
	if a.Late = ending == TimeOver; a.Late {
		for i := range a.acquires {
			if !a.acquires[i].Counted {
				a.fail(i, a.masters.Hung(i, a.acquires[i].Key, a.Timeout))
			}
		}
	}
	// without an offer, a quorum isn't enough against the leader, which may have offered the slot to another call
	return ending != CallerLeft && len(a.granted) >= quorum && len(a.done) == 0 && (a.offered || !a.leaderRefuses())
}

// ownLeft reports whether the holder is an attempt or a lock of this process whose release is on its way. That release wakes only other processes.
func (a *Attempt) ownLeft(holder string) bool {
	return a.Slots <= 1 && strings.HasPrefix(holder, a.masters.Process)
}

// MayHaveTicket reports whether any master may have the call's ticket.
func (a *Attempt) MayHaveTicket() bool {
	for i, s := range a.masters.Streams {
		if s.At(a.acquires[i].Key).MayHave(&a.tickets[i]) {
			return true
		}
	}
	return false
}

// Withdraw removes the ticket of a call that has won from the masters that have refused the call. There the ticket would keep other calls from
// getting slots.
func (a *Attempt) Withdraw() {
	for i := range a.acquires {
		if c := &a.acquires[i]; c.Counted && c.Queue && c.Reply.Status == protocol.StatusHeld {
			a.push(c.Withdrawal(a.ticket))
		}
	}
}
