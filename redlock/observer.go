package redlock

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Observer has functions that are called when something happens to a Locker's masters, leases and calls, for metrics, alarms and traces. A nil
// function costs nothing. The functions are called one at a time, in the order of events, shortly after each event. They can't delay a lock: while a
// function blocks, events wait in a queue, and are dropped if they become too many. Status.DroppedEvents counts the dropped events, and the calls
// that panic. For the state before the first event, see Locker.Status.
type Observer struct {
	// Attempted is called with each attempt to take a key on the masters, for debugging. The text has the masters' votes, how long the attempt took,
	// and why the call waits now. It doesn't name the key.
	Attempted func(fmt.Stringer)
	// Acquired is called when a lock has been taken. waited is the time since the call. via says how the call got the lock: "free" if the key was free
	// at the first attempt; "passed" if the previous holder, in the same process, has handed the lock on; "woken" if a master has published that the
	// key was free; "polled" if the call has found the key free by asking again, because the holder had died, or a wake-up was lost.
	Acquired func(waited time.Duration, via string)
	// Renewed is called when a round of renewals of one lease has ended. The error is nil if a quorum of the masters has extended the lease.
	// Otherwise it is the reason, a *QuorumError or ErrNotOwner. A failed round doesn't end the lease, because the next round comes before the
	// lease's end.
	Renewed func(error)
	// LeaseLost is called once for each lock that is lost before Unlock, or that Unlock finds lost. The error is ErrLost, or wraps it.
	LeaseLost func(error)
	// MasterDown is called when a master has no vote any more. Its status says why: for example, it does not answer, has just restarted, or is a
	// replica.
	MasterDown func(MasterStatus)
	// MasterUp is called when a master that was down has a vote again, with its name.
	MasterUp func(master string)
}

// reporter passes a Locker's events on to the logger and the Observer. Each of the two has a separate queue, so neither can delay a lease, a call, a
// master or the other.
type reporter struct {
	logger   *slog.Logger // puts its lines into the queue lines, rather than into the log
	lines    notices.Queue[notices.Line]
	observer Observer
	events   notices.Queue[observed]
}

func newReporter(o *options) *reporter {
	r := &reporter{observer: o.observer}
	unasked, asking := notices.Log(&r.lines, o.logger.Handler())
	r.logger, o.logger = asking, unasked
	r.events.Receive = func(e observed) { e.tell(&r.observer, e) }
	r.events.Missed = func(n uint64) {
		unasked.Warn("the observer was not told of all events: it was too slow, or failed", "events", n)
	}
	return r
}

// close delivers the queued events and lines, but waits only a short time for a logger or Observer that blocks.
func (r *reporter) close() {
	r.events.Close()
	r.lines.Close()
}

// observed is a queued call of an Observer. Frequent events are in its fields, because a closure for each would cost an allocation.
type observed struct {
	tell     func(*Observer, observed)
	acquired inside.Acquisition
	err      error
}

// traces reports whether the Observer has Attempted. If it doesn't, no time is spent on describing attempts.
func (r *reporter) traces() bool { return r.observer.Attempted != nil }

// attempted reports an attempt. It may be called only if traces returns true.
func (r *reporter) attempted(a attempt) {
	r.events.Push(observed{tell: func(o *Observer, _ observed) { o.Attempted(a) }})
}

func (r *reporter) acquired(a inside.Acquisition) {
	if r.observer.Acquired != nil {
		r.events.Push(observed{acquired: a, tell: func(o *Observer, e observed) { o.Acquired(e.acquired.Waited, e.acquired.Via) }})
	}
}

func (r *reporter) renewed(err error) {
	if r.observer.Renewed != nil {
		r.events.Push(observed{err: err, tell: func(o *Observer, e observed) { o.Renewed(e.err) }})
	}
}

func (r *reporter) leaseLost(err error) {
	if r.observer.LeaseLost != nil {
		r.events.Push(observed{err: err, tell: func(o *Observer, e observed) { o.LeaseLost(e.err) }})
	}
}

// Down implements link.Watcher.
func (r *reporter) Down(s link.State) {
	if r.observer.MasterDown != nil {
		status := masterStatus(s)
		r.events.Push(observed{tell: func(o *Observer, _ observed) { o.MasterDown(status) }})
	}
}

// Up implements link.Watcher.
func (r *reporter) Up(master string) {
	if r.observer.MasterUp != nil {
		r.events.Push(observed{tell: func(o *Observer, _ observed) { o.MasterUp(master) }})
	}
}

// attempt is the result of one attempt to take a key on the masters, for an Observer. A call makes one attempt, and more while it waits. The attempt
// doesn't name the key.
type attempt struct {
	Token  string        // the beginning of the attempt's token, by which package inspect shows a holder
	Number int           // the attempt's number in its call, from 1; 0 if no attempt was made: the call has waited ten seconds for a lock of this process
	Via    string        // the reason for the attempt; ViaFree for the first
	Took   time.Duration // the time until the attempt was decided: about one round trip to the masters that decided it
	Votes  []vote.Ballot // the votes of all masters, in the order of Status
	Err    error         // the reason why the attempt was lost; nil if it was won
	Fence  uint64        // the fence of the lock, if it was won
	Wait   time.Duration // how long the call now waits before its next attempt, unless it is woken; 0 if there will be none
	For    string        // the reason for the wait
}

// String returns the attempt as a line for a log.
func (a attempt) String() string {
	if a.Number == 0 {
		return fmt.Sprintf("no attempt for %v: waits for %s", a.Took.Round(time.Microsecond), a.For)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "attempt %d by %s (%s), %v: ", a.Number, a.Token, a.began(), a.Took.Round(time.Microsecond))
	if a.Err == nil {
		fmt.Fprintf(&b, "won with fence %d", a.Fence)
	} else {
		fmt.Fprintf(&b, "lost: %v", a.Err)
	}
	for _, v := range a.Votes {
		fmt.Fprintf(&b, "; %s %s", v.Master, v)
	}
	if a.Wait > 0 {
		fmt.Fprintf(&b, "; waits %v for %s", a.Wait.Round(time.Microsecond), a.For)
	}
	return b.String()
}

// began returns the reason for an attempt that may have been lost: "first" in place of "free", because only a won attempt proves that the key was
// free.
func (a attempt) began() string {
	if a.Via == inside.ViaFree {
		return "first"
	}
	return a.Via
}
