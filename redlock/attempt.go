package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// attempt is one try to take a key: one fresh token, and one vote of each master. A token is never
// used twice: a late release of an earlier attempt would free the lock of a later one.
type attempt struct {
	locker  *Locker
	start   time.Time
	ttl     time.Duration
	ticket  int64 // of its call
	timeout time.Duration
	calls   []call // the acquires, by master
	answers *inbox // to the acquires, and to the release
	timer   *time.Timer
	over    atomic.Bool // the lock is not wanted any more
	touched atomic.Bool // a master that refused the acquire may have the key, or the call in its queue

	// The arguments of the commands, made once for all masters that get the same: without Queue, with it,
	// and of releases with Alone.
	acquireArgs, releaseArgs [3][]any

	fence   int64
	granted []*call
	held    []Reply       // the votes that another has
	deaf    bool          // one of them will not wake us
	failed  []MasterError // the masters that gave no vote
}

// newAttempt sends an acquire to all masters at once. Where there is a former lock, the same commands
// release it, and it gets the answers to that.
func (l *Locker) newAttempt(c *caller, former *attempt) *attempt {
	a := &attempt{
		locker:  l,
		start:   time.Now(),
		ttl:     c.ttl,
		ticket:  c.ticket,
		calls:   make([]call, len(l.streams)),
		answers: newInbox(OpAcquire, l.decisive(), len(l.streams)),
	}
	acquire := Command{Op: OpAcquire, Key: c.key, Token: l.terms + rand.Text(), TTL: c.ttl, Fence: l.clock(), Process: l.name, Ticket: c.ticket}
	if c.try {
		acquire.Ticket = TryTicket
	}
	var releases []call
	if former != nil {
		acquire.Former = former.calls[0].Token
		former.over.Store(true)
		former.answers.expect(OpRelease, l.decisive())
		releases = make([]call, len(l.streams))
	}
	for i, s := range l.streams {
		a.calls[i] = call{Command: acquire, master: i, over: &a.over, to: a.answers}
		a.calls[i].Queue = !c.try && s.hears.Load()
		args := &a.acquireArgs[which(&a.calls[i].Command)]
		if *args == nil {
			*args = a.calls[i].arguments()
		}
		a.calls[i].args = *args
		if former != nil {
			releases[i] = former.releaseCall(i, false, former.answers)
			a.calls[i].former = &releases[i]
		}
		s.push(&a.calls[i])
		a.timeout = max(a.timeout, s.latency.timeout())
	}
	return a
}

// decisive is how many masters must have answered before anything can be certain.
func (l *Locker) decisive() int { return min(l.quorum, len(l.streams)-l.quorum+1) }

// win collects votes until a quorum has granted and stored the fence, or is out of reach, or the
// masters' time is over, or the caller leaves. It says whether the lock is won.
func (a *attempt) win(ctx context.Context) bool {
	quorum := a.locker.quorum
	certain := false
	ending := a.collect(ctx, a.locker.closing, a.answers, len(a.calls), func(c *call, pending int) (done bool) {
		c.counted = true
		switch {
		case c.Reply.Err != nil:
			a.fail(c.master, c.Reply.Err)
		case c.Reply.Status == StatusGranted:
			if a.granted == nil {
				a.granted = make([]*call, 0, len(a.calls))
			}
			a.granted = append(a.granted, c)
			a.fence, certain = chooseFence(a.fences(), len(a.calls), quorum)
		default:
			a.held = append(a.held, c.Reply)
			a.deaf = a.deaf || !c.Queue
		}
		return certain || len(a.granted)+pending < quorum
	})
	if ending == timeOver {
		for i := range a.calls {
			if !a.calls[i].counted {
				a.fail(i, fmt.Errorf("%w within %v", errHung, a.timeout))
			}
		}
	}
	if !certain && ending != callerLeft && len(a.granted) >= quorum {
		certain = a.raise(ctx)
	}
	return certain && !past(a.until())
}

// raise gives the fence to the masters that have granted with a smaller one, and says whether a
// quorum has stored it now.
func (a *attempt) raise(ctx context.Context) bool {
	low := slices.DeleteFunc(slices.Clone(a.granted), func(c *call) bool { return c.Reply.Fence >= a.fence })
	stored := len(a.granted) - len(low)
	answers := newInbox(OpExtend, 1, len(low))
	for _, c := range low {
		a.locker.streams[c.master].push(a.extension(c.master, 0, answers))
	}
	a.collect(ctx, a.locker.closing, answers, len(low), func(c *call, pending int) (done bool) {
		if c.Reply.Status == StatusGranted {
			stored++
		}
		return stored >= a.locker.quorum || stored+pending < a.locker.quorum
	})
	return stored >= a.locker.quorum
}

// extension is the call that renews the lease on one master, and raises its fence to the lock's.
func (a *attempt) extension(master int, refillUntil int64, to receiver) *call {
	acquire := &a.calls[master]
	return &call{
		Command: Command{Op: OpExtend, Key: acquire.Key, Token: acquire.Token, TTL: a.ttl, Fence: a.fence, RefillUntil: refillUntil},
		master:  master,
		over:    &a.over,
		to:      to,
	}
}

// startTimer starts the masters' time for an answer.
func (a *attempt) startTimer() *time.Timer {
	if a.timer == nil {
		a.timer = time.NewTimer(a.timeout)
	} else {
		a.timer.Reset(a.timeout)
	}
	return a.timer
}

func (a *attempt) fences() []int64 {
	fences := make([]int64, len(a.granted))
	for i, c := range a.granted {
		fences[i] = c.Reply.Fence
	}
	return fences
}

func (a *attempt) fail(master int, err error) {
	a.failed = append(a.failed, MasterError{Master: a.locker.streams[master].master.String(), Err: err})
}

// past says whether a time is over by the monotonic clock or by the wall's: the monotonic one stands
// still while the host is suspended, and the masters' don't.
func past(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// until is the end of the validity of a lock won in this attempt: counted from before the masters
// began to count, less the drift.
func (a *attempt) until() time.Time { return a.start.Add(a.ttl - drift(a.ttl)) }

// release frees the key on all masters that have, or may have, granted it. It doesn't wait: the
// streams keep the order and the retries. The answers go to the receiver, if there is one. Where the
// wait goes on, the masters that have the call in the queue keep it.
func (a *attempt) release(to receiver, waiting bool) {
	a.over.Store(true)
	calls := make([]call, len(a.calls))
	for i, s := range a.locker.streams {
		calls[i] = a.releaseCall(i, waiting, to)
		s.push(&calls[i])
	}
}

func (a *attempt) releaseCall(master int, waiting bool, to receiver) call {
	acquire := &a.calls[master]
	release := Command{Op: OpRelease, Key: acquire.Key, Token: acquire.Token, TTL: a.ttl,
		Process: acquire.Process, Ticket: a.ticket, Queue: waiting && acquire.Queue, Alone: !waiting && a.alone()}
	args := &a.releaseArgs[which(&release)]
	if *args == nil {
		*args = releaseArguments(&release, acquire.args, &a.ticket)
	}
	release.args = *args
	return call{
		Command: release,
		master:  master,
		acquire: acquire,
		until:   time.Now().Add(a.ttl),
		sure:    a.touched.Load(),
		to:      to,
	}
}

// alone says whether nobody waited for the key when it was granted, as far as is known.
func (a *attempt) alone() bool {
	return len(a.granted) > 0 && len(a.held) == 0 && !slices.ContainsFunc(a.granted, func(c *call) bool { return !c.Reply.Alone })
}

// which of the arguments a command has.
func which(cmd *Command) int {
	switch {
	case cmd.Queue:
		return 1
	case cmd.Alone:
		return 2
	}
	return 0
}

// split says whether the votes went to several at once, so that perhaps nobody has won.
func (a *attempt) split() bool {
	votes := make(map[string]int, len(a.held))
	for _, reply := range a.held {
		votes[reply.Holder]++
		if votes[reply.Holder] >= a.locker.quorum {
			return false
		}
	}
	return len(a.held) > 0 && !a.tooFewLive()
}

// tooFewLive says whether so many masters failed that nobody can have a quorum.
func (a *attempt) tooFewLive() bool { return len(a.calls)-len(a.failed) < a.locker.quorum }

// failure says why the attempt was lost. Votes that went to others are contention, whether or not
// one of them has won: that is ErrHeld. ErrNoQuorum is for masters that don't answer.
func (a *attempt) failure() error {
	if a.tooFewLive() || len(a.held) == 0 {
		err := &QuorumError{Answered: len(a.granted) + len(a.held), Quorum: a.locker.quorum, Masters: a.failed}
		var guarded []time.Duration
		for _, failed := range a.failed {
			var guard *guardError
			if errors.As(failed.Err, &guard) {
				guarded = append(guarded, time.Until(guard.until))
			}
		}
		slices.Sort(guarded)
		if missing := a.locker.quorum - (len(a.calls) - len(a.failed)); 0 < missing && missing <= len(guarded) {
			err.RetryAfter = guarded[missing-1]
		}
		return err
	}
	held := &HeldError{}
	for _, reply := range a.held {
		held.RetryAfter = max(held.RetryAfter, reply.TTL)
	}
	return held
}

// patience is how long it makes sense to wait for a wake-up: until enough of the leases met may have
// ended, but not longer than a third of our own ticket's.
func (a *attempt) patience() time.Duration {
	const early = time.Millisecond // Redis counts in whole ones
	patience := a.ttl / 3
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

// queuedAnywhere says whether a master may have the call in its queue.
func (a *attempt) queuedAnywhere() bool {
	for i := range a.calls {
		if a.calls[i].Queue {
			return true
		}
	}
	return false
}
