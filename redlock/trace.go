package redlock

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Attempt is what has become of one try to take a key on the masters, for WithTracer. A call makes one, and others while it waits. It
// doesn't have the key.
type Attempt struct {
	Token  string        // the beginning of its token, by which Inspect shows a holder
	Number int           // among those of its call, from 1
	Via    Via           // what has begun it; ViaFree for the first
	Took   time.Duration // until it was decided: about one round trip to the masters that decided it
	Votes  []Vote        // of all masters, in the order of Status
	Err    error         // why it was lost; nil if it was won
	Fence  uint64        // of the lock, if it was won
	Wait   time.Duration // how long the call waits now before it tries again, unless it is woken; 0 if it tries no more
	For    string        // why
}

// Vote is the answer of one master to an attempt.
type Vote struct {
	Master  string
	Counted bool   // it has answered before the attempt was decided, or its time was over
	Granted bool   // with a fence
	Fence   uint64 // if granted
	Done    bool   // it remembers a result
	Holder  string // otherwise the beginning of the token that has the key; empty if another process is next in line
	Err     error  // why it has given no vote
}

// String is the attempt as a line, for a log.
func (a Attempt) String() string {
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

// began is Via, for one that may have been lost.
func (a Attempt) began() Via {
	if a.Via == ViaFree {
		return "first"
	}
	return a.Via
}

// String is the vote without the master.
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

// trace tells the tracer, if there is one, how an attempt has ended, and for what the call waits then.
func (t *contender) trace(a *attempt, err error, wait time.Duration, what string) {
	if t.locker.trace == nil {
		return
	}
	event := Attempt{Token: shown(a.acquires[0].Token), Number: t.tries, Via: t.via, Took: time.Since(a.start), Err: err, Wait: wait, For: what}
	if err == nil {
		event.Fence = uint64(a.fence)
	}
	for i := range a.acquires {
		event.Votes = append(event.Votes, a.vote(i))
	}
	t.locker.trace(event)
}

// vote returns the answer of one master.
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
