package redlock

import (
	"context"
	"slices"
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
	waits     bool                 // a release has left the ticket
	several   bool                 // one of the attempts of a LockAll call: commands are queued for all keys before any is sent
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

// newAttempts sends the acquires for all keys of a call to all masters. They share one proposed fence and
// one start, so that the locks of the call share their fence and the end of their validity.
func (l *Locker) newAttempts(callers []*caller, into []*attempt) []*attempt {
	start := time.Now()
	proposal := l.number(callers...)
	for _, c := range callers {
		into = append(into, l.newAttempt(c, nil, start, proposal))
	}
	into[0].sendSoon()
	return into
}

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

// newAttempt sends an acquire to all masters. With former, the attempt whose lock is handed on, each of
// these commands first releases that lock; the replies to the releases go to former's inbox.
func (l *Locker) newAttempt(c *caller, former *attempt, start time.Time, proposal int64) *attempt {
	a := &attempt{
		round:    round{locker: l, replies: newInbox(protocol.OpAcquire, l.decisive(), len(l.streams))},
		start:    start,
		ttl:      c.ttl,
		ticket:   c.ticket,
		several:  c.several,
		slots:    uint16(c.slots),
		acquires: make([]link.Command, len(l.streams)),
	}
	a.over = a.ring
	acquire := protocol.Command{Op: protocol.OpAcquire, Key: c.key, Token: l.random(), TTL: c.ttl, Fence: proposal, Process: l.name, Ticket: c.ticket, Recall: c.recall}
	if c.slots > 1 {
		if former == nil {
			a.slot = l.gates.chooseSlot(c, l.firstSlot())
		} else {
			a.slot = former.slot
		}
		acquire.Slots, acquire.Process = a.slots, protocol.CallName(l.name, c.order)
		acquire.Key = protocol.SlotKey(c.key, int(a.slot))
	}
	if c.several {
		acquire.Token += severalMark
	}
	queue := !c.try && c.ticket > 0
	if !queue {
		acquire.Ticket = protocol.TryTicket
	}
	var releases []link.Command
	if former != nil {
		acquire.Former = former.acquires[0].Token
		former.abandoned.Store(true)
		former.replies.expect(protocol.OpRelease, l.decisive())
		releases = make([]link.Command, len(l.streams))
	}
	fast := former == nil && !c.recall && !c.tried && c.ahead == 0 && c.ttl >= l.fastFrom && c.slots == 1 // nothing says that others want the key
	c.tried = true
	if c.tickets == nil {
		c.tickets = append(c.room[:0], make([]link.TicketState, len(l.streams))...)
	}
	for i, s := range l.streams {
		a.acquires[i] = link.NewAcquire(acquire, i, &a.abandoned, &c.tickets[i], a.replies)
		subscribed := s.Subscribed()
		a.acquires[i].Polls = !subscribed && (c.polls || s.Denied())
		a.acquires[i].Queue = queue && (subscribed || c.polls)
		a.acquires[i].Fast = fast && !a.acquires[i].Polls
		if former != nil {
			releases[i] = former.releaseOf(i, false, former.replies)
			a.acquires[i].First(&releases[i])
		}
		a.push(&a.acquires[i])
		a.timeout = max(a.timeout, s.ForKey(c.key).Patience())
	}
	return a
}

// ring runs when the time of a round may be over, or that of the lock: between its rounds, the timer is the lock's.
func (a *attempt) ring() {
	if k := a.lock.Load(); k != nil {
		k.expire()
	}
	a.replies.ring()
}

// extension returns the command that renews the lease on one master and raises the fence stored there to the
// lock's. A master that has lost the key may take it anew until refill; never if that is zero.
func (a *attempt) extension(master int, refill time.Time, to link.Receiver) *link.Command {
	return a.acquires[master].Extension(a.fence, refill, to)
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
		timeout = max(timeout, s.ForKey(a.acquires[i].Key).Timeout())
	}
	return timeout
}

// confirmRelease waits for the masters' replies to a release until the result is certain.
func (a *attempt) confirmRelease(deadline time.Time) error {
	quorum := a.locker.quorum
	released, result := 0, error(nil)
	var failed []*MasterError
	ending := a.collect(context.Background(), nil, deadline, len(a.acquires), func(c *link.Command, pending int) (done bool) {
		switch {
		case c.Reply.Err != nil:
			failed = append(failed, &MasterError{a.name(c.Master), c.Reply.Err})
		case c.Reply.Status == protocol.StatusReleased:
			released++
		case c.Reply.Status == protocol.StatusNotOwner:
			result = ErrNotOwner
		case c.Reply.Status == protocol.StatusExpired && result == nil:
			result = ErrExpired
		}
		// no quorum can have held the key until now
		expired := result != nil && released+len(failed)+pending < quorum
		return released >= quorum || expired
	})
	switch {
	case released >= quorum:
		return nil
	case ending == timeOver:
		return &QuorumError{Answered: released, Quorum: quorum, Total: len(a.acquires), Masters: failed, Err: link.ErrHung}
	case result != nil && released+len(failed) < quorum:
		return result
	}
	return &QuorumError{Answered: released, Quorum: quorum, Total: len(a.acquires), Masters: failed}
}
