package redlock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Observer has functions that are called when something happens to a Locker's masters, leases and calls, for metrics, alarms and traces. A nil
// function costs nothing. The functions are called one at a time, in the order of events, shortly after each event. They can't delay a lock: while
// one blocks, events wait, and are dropped if they become too many. Status.DroppedEvents counts the dropped events, and the calls that panic.
// Locker.Status has the state at the start.
type Observer struct {
	// Attempted is called with each try to take a key on the masters: their votes, how long it took, and why the call waits now. It is for debugging
	// a lock; the String of an Attempt is a line for a log.
	Attempted func(Attempt)
	// Acquired is called when a lock has been taken.
	Acquired func(Acquisition)
	// Renewed is called when a round of renewals of one lease has ended: with nil if a quorum of the masters has extended the lease, and otherwise
	// with the reason, a *QuorumError or ErrNotOwner. A failed round doesn't end the lease, because the next round comes before the lease's end.
	Renewed func(error)
	// LeaseLost is called once for each lock that is lost before Unlock, or that Unlock finds lost, with ErrLost or an error that wraps it.
	LeaseLost func(error)
	// MasterDown is called when a master has no vote any more. Its status says why: it does not answer, it has
	// just restarted, its clock jumped, it is a replica, and so on.
	MasterDown func(MasterStatus)
	// MasterUp is called when a master that was down has a vote again, with its name.
	MasterUp func(master string)
}

// Acquisition describes how a lock was obtained.
type Acquisition struct {
	// Waited is the time from the call until the lock was taken.
	Waited time.Duration
	// Position is the number of calls for the key in this process, the holders among them, that were ahead of this one when it came.
	Position int
	// Via says how the call got the lock.
	Via Via
	// Granted is the number of masters that had granted the lock when it was taken. The others may follow.
	Granted int
}

// Via says how a call got the lock, see Acquisition.
type Via string

// The values of Via.
const (
	ViaFree   Via = "free"   // the key was free at the first attempt
	ViaPassed Via = "passed" // the holder before, in the same process, handed the lock on
	ViaWoken  Via = "woken"  // a master published that the key was free
	ViaPolled Via = "polled" // the call found the key free by asking again: the holder had died, or a wake-up was lost
)

// reporter tells the logger and the Observer what happens to a Locker. Each has a queue of its own, so neither can delay a lease, a call, a master or
// the other.
type reporter struct {
	logger   *slog.Logger // puts its lines into the logger's queue
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

// close delivers the queued events and lines, but doesn't wait long for a logger or Observer that blocks.
func (r *reporter) close() {
	r.events.Close()
	r.lines.Close()
}

// observed is a queued call of an Observer. Frequent events are in its fields, so that they cost no allocation.
type observed struct {
	tell     func(*Observer, observed)
	acquired Acquisition
	err      error
}

// traces reports whether the Observer wants attempts, because describing one takes time.
func (r *reporter) traces() bool { return r.observer.Attempted != nil }

// attempted reports an attempt. Callers have asked traces.
func (r *reporter) attempted(a Attempt) {
	r.events.Push(observed{tell: func(o *Observer, _ observed) { o.Attempted(a) }})
}

func (r *reporter) acquired(a Acquisition) {
	if r.observer.Acquired != nil {
		r.events.Push(observed{acquired: a, tell: func(o *Observer, e observed) { o.Acquired(e.acquired) }})
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

// Attempt is the result of one try to take a key on the masters, for an Observer. A call makes one, and more while it waits. It doesn't name the key.
type Attempt struct {
	Token  string        // the beginning of the attempt's token, by which package inspect shows a holder
	Number int           // the attempt's number in its call, from 1; 0 if the call has stood in line for ten seconds for a lock of this process
	Via    Via           // the cause of the attempt; ViaFree for the first
	Took   time.Duration // the time until the attempt was decided: about one round trip to the masters that decided it
	Votes  []Vote        // the votes of all masters, in the order of Status
	Err    error         // the reason why the attempt was lost; nil if it was won
	Fence  uint64        // the fence of the lock, if it was won
	Wait   time.Duration // how long the call now waits before it tries again, unless it is woken; 0 if it doesn't try again
	For    string        // the reason for the wait
}

// Vote is the reply of one master to an attempt.
type Vote struct {
	Master  string
	Counted bool   // the master answered before the attempt was decided, or its time was over
	Granted bool   // the master granted the key, with a fence
	Fence   uint64 // the fence of the grant
	Done    bool   // the master remembers a result
	Holder  string // if the master refused: the beginning of the token that has the key; empty if another process is next in line
	Err     error  // the reason why the master has given no vote
}

func voteOf(b vote.Ballot) Vote {
	b.Holder = protocol.Shown(b.Holder)
	return Vote(b)
}

// String returns the attempt as a line for a log.
func (a Attempt) String() string {
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

// began returns the cause of an attempt that may have been lost: "first" instead of "free", which only a won attempt proves.
func (a Attempt) began() Via {
	if a.Via == ViaFree {
		return "first"
	}
	return a.Via
}

// String returns the vote without the name of the master.
func (v Vote) String() string {
	switch {
	case !v.Counted:
		return "hasn't answered"
	case v.Err != nil:
		return "has no vote: " + v.Err.Error()
	case v.Granted:
		return fmt.Sprintf("has granted it with fence %d", v.Fence)
	case v.Done:
		return "remembers a result"
	case v.Holder == "":
		return "has refused it for another process that waits"
	}
	return "has refused it for " + v.Holder
}

// KeyHash returns the beginning of the SHA-256 of a key, in hexadecimal digits. Log lines have it in place of the key, which may be personal data, so
// that all lines about one key can be found. Anybody who can guess a key can check the guess.
func KeyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}
