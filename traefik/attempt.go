package traefik

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"strconv"
	"time"
)

// attempt is one try to take a key: one fresh token, and one vote of each master. A token is never used twice: a late
// release of an earlier attempt would free the lock of a later one. The locker's mu guards it.
type attempt struct {
	l      *locker
	lockID int64 // once the attempt is won
	keys   string
	full   string
	token  string
	start  time.Time
	ttl    time.Duration
	ticket int64
	queued bool // the call's ticket is in the masters' queues
	votes  []*vote
	over   bool // the lock is no longer wanted

	proposal int64
	fence    int64
	certain  bool // a quorum has stored the fence

	phase    int           // which answers count
	pending  int           // answers of this phase that have not come
	yes      int           // granted votes, or releases
	failures int           // masters that gave no vote
	late     bool          // the time-out was over before all votes had come
	holders  []string      // tokens of others that masters have refused us for
	left     time.Duration // the longest time that the leases of these can last
	news     chan bool     // gets a value when the phase is decided
}

// The phases of an attempt, and the rounds of extends of a lock behind them.
const (
	voting = iota
	raising
	held
	releasing
)

// newToken returns a token, as package redlock makes them: it begins with the ID of the process.
func (l *locker) newToken() string { return l.id + randomText()[:18] }

// randomText returns 24 random letters and digits.
func randomText() string {
	var random [15]byte
	_, err := rand.Read(random[:])
	if err != nil {
		panic(err)
	}
	return base32.StdEncoding.EncodeToString(random[:])
}

// begin sends an acquire to all masters, and returns how long to wait for their votes. With a ticket the call takes its place in
// the queue, as one that polls.
func (l *locker) begin(key string, ttl time.Duration, ticket int64) (*attempt, time.Duration) {
	a := &attempt{l: l, full: l.fullKey(key), token: l.newToken(), start: time.Now(), ttl: ttl, ticket: ticket, queued: ticket > 0, news: make(chan bool, 1)}
	a.keys = keysOf(a.full)
	flags := 0
	if a.queued {
		flags = queues + polls
	} else {
		ticket = tryTicket
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.proposal, _ = mastersNow(l)
	body := a.keys + bulks(a.token, l.name, strconv.FormatInt(ticket, 10), strconv.FormatInt(int64(ttl/time.Millisecond), 10), strconv.Itoa(flags), strconv.FormatInt(a.proposal, 10))
	a.pending = len(l.streams)
	patience := time.Duration(0)
	for _, s := range l.streams {
		v := &vote{}
		a.votes = append(a.votes, v)
		patience = longer(patience, patienceOf(s, a.start))
		push(s, &command{op: opAcquire, words: 11, body: body, a: a, vote: v, phase: voting})
	}
	return a, patience
}

// The flags of the scripts: the process waits in the queue, and it polls, because it can't be woken.
const (
	queues = 1
	polls  = 2
)

// win collects votes until a quorum has granted and stored the fence, until a quorum is out of reach, until the time-out is over,
// or until the caller gives up. It reports whether the lock is won.
func (a *attempt) win(ctx context.Context, patience time.Duration) bool {
	a.await(ctx, patience)
	if !a.voted() {
		return false
	}
	if a.raise() {
		flush(a.l)
		a.await(ctx, a.l.timeout)
	}
	return a.won()
}

// await waits for the news of a phase.
func (a *attempt) await(ctx context.Context, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-a.news:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// notify wakes the caller: the phase is decided.
func notify(a *attempt) {
	select {
	case a.news <- true:
	default:
	}
}

// nextPhase begins a phase in which pending answers are to come.
func nextPhase(a *attempt, phase, pending int) {
	a.phase = phase
	a.pending = pending
	a.yes = 0
	select {
	case <-a.news:
	default:
	}
}

// voted ends the wait for votes, and reports whether a quorum has granted.
func (a *attempt) voted() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.late = a.pending > 0 && a.yes+a.pending >= a.l.quorum && !a.certain
	return a.yes >= a.l.quorum
}

// raise sends the lock's fence to the masters that have granted with a smaller one, unless a quorum has stored as much. It reports
// whether there are answers to wait for.
func (a *attempt) raise() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.certain {
		return false
	}
	low := 0
	for _, v := range a.votes {
		if v.granted && v.fence < a.fence {
			low++
		}
	}
	nextPhase(a, raising, low)
	for i := 0; i < len(a.votes); i++ {
		if v := a.votes[i]; v.granted && v.fence < a.fence {
			extendOn(a, i, raising, 0, time.Time{})
		}
	}
	return true
}

// extendOn queues an extend. The master may take a free key anew until refill, or not at all if refill is zero.
func extendOn(a *attempt, master, phase, round int, refill time.Time) {
	s := a.l.streams[master]
	deadline := int64(0)
	if !refill.IsZero() {
		deadline = s.clock.least(refill)
	}
	body := a.keys + bulks(a.token, "", "0", strconv.FormatInt(int64(a.ttl/time.Millisecond), 10), "0", strconv.FormatInt(a.fence, 10), strconv.FormatInt(deadline, 10))
	push(s, &command{op: opExtend, words: 12, body: body, a: a, vote: a.votes[master], phase: phase, round: round, until: refill})
}

// won reports whether the lock may be used: a quorum has stored its fence, its lease has not expired, and the other processes know
// about this one. Votes that come later don't count.
func (a *attempt) won() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if storedFence(a) < a.l.quorum || past(a.until()) || !a.l.sets.allows() {
		return false
	}
	nextPhase(a, held, 0)
	return true
}

// until returns the end of the validity, which is counted from before the masters began to count, and shortened by the drift.
func (a *attempt) until() time.Time { return a.start.Add(a.ttl - drift(a.ttl)) }

func (a *attempt) releaseBody(ticket int64, flags int) string {
	return a.keys + bulks(a.token, a.l.name, strconv.FormatInt(ticket, 10), strconv.FormatInt(int64(a.ttl/time.Millisecond), 10), strconv.Itoa(flags))
}

// release queues a release for all masters that may have granted the key or may have the ticket. If the call goes on waiting,
// they keep the ticket. The caller holds mu, and flushes.
func (a *attempt) release(waiting bool) {
	a.over = true
	flags := 0
	if waiting && a.queued {
		flags = queues + polls
	}
	nextPhase(a, releasing, len(a.l.streams))
	body := a.releaseBody(a.ticket, flags)
	plain := plainCommand("LREM", a.full, "1", a.token)
	now := time.Now()
	for i := 0; i < len(a.votes); i++ {
		v := a.votes[i]
		c := &command{op: opRelease, words: 10, body: body, a: a, vote: v, phase: releasing}
		if v.alone && !v.ticket {
			c.plain = plain
		}
		if needless(c, now) {
			a.pending--
		} else if waiting && !v.mayHold {
			a.pending-- // it has only the ticket, which it keeps
		} else {
			push(a.l.streams[i], c)
		}
	}
	decide(a)
}
