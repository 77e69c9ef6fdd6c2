package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// The pauses between attempts where no master wakes us. A waiter's pause doubles up to waitMost, so that a
// long wait costs the masters little. The pause after split votes is short, and random so that one of the
// callers comes first.
const (
	waitLeast  = 5 * time.Millisecond
	waitMost   = 100 * time.Millisecond
	splitPause = 3 * time.Millisecond
	splitTries = 4
	absentMost = time.Second // for a call that others tell of masters

	releasePause = time.Millisecond / 2 // for a release that is on its way; doubles
	mostAgain    = 6
)

// What a call waits for between its attempts, as an Observer is told.
const (
	forOthers        = "others that have taken votes from it: a short time at random"
	forReleases      = "masters that are about to learn of a release"
	forMasters       = "masters that have no vote"
	forSubscriptions = "its subscriptions to wake-ups"
	forWakeUp        = "the wake-up of a master, or the end of a lease"
	forNobody        = "a time, as a master can't wake it"
)

// contender is a call that is at the head of all its gates, and what it remembers between its attempts.
type contender struct {
	shared     *shared
	callers    []*caller // one for each key
	tries      int
	again      int           // how often it has asked again at once, for a slot that is its own, or that it is offered
	failure    error         // of the last attempt
	pause      time.Duration // before the next attempt if no master wakes us
	subscribed bool          // counted as one that waits for wake-ups
	insists    time.Time     // until then it keeps its places for all of its keys: see insist
	via        Via
	paced      bool             // the attempt under way has a place
	haste      haste            // how soon it may ask
	room       [1]*atomic.Int64 // enough for one key; saves an allocation
}

// haste bounds how often a call asks masters, whatever these say and however often they wake it: mostHaste times at once, and then once in
// askGap on average. Its zero value is that of a call which hasn't asked yet.
type haste struct{ full time.Time } // when it may ask so often at once again

const (
	mostHaste = 10
	askGap    = 50 * time.Millisecond
)

// gap is askGap, or less for a TTL of which a third is less: so often a call has to ask.
func gap(ttl time.Duration) time.Duration { return min(askGap, ttl/3) }

// rest returns how long it is until the next time, which is then counted by ask.
func (h *haste) rest(gap time.Duration) time.Duration {
	return time.Until(h.full.Add(-(mostHaste - 1) * gap))
}

func (h *haste) ask(gap time.Duration) {
	if now := time.Now(); h.full.Before(now) {
		h.full = now
	}
	h.full = h.full.Add(gap)
}

// begin waits until the call may make an attempt, or returns why it must leave without one. A call that has made none waits for as long as
// masters may take to answer, at least: so a short wait has the chances of a try-lock.
func (t *contender) begin(wait *waitLimit) error {
	l, first := t.shared, t.callers[0]
	until := func() time.Time {
		if t.tries > 0 || wait.until.IsZero() && !first.try {
			return wait.until
		}
		least := time.Now().Add(l.voters.Patience(first.key))
		if least.Before(wait.until) {
			return wait.until
		}
		return least
	}
	if err := t.awaitMasters(wait.context()); err != nil {
		return err
	}
	gap := gap(first.ttl)
	if rest := t.haste.rest(gap); rest > 0 {
		if err := t.sleep(wait.context(), rest); err != nil {
			return err
		}
	}
	t.haste.ask(gap)
	if t.paced = l.pace.begin(wait.ctx, l.closing, until); t.paced {
		return nil
	}
	if err := l.stopped(wait.ctx, t.failure); err != nil {
		return err
	}
	if t.failure == nil {
		t.failure = ErrBusy
	}
	if first.try {
		return t.failure
	}
	return endedBy(context.DeadlineExceeded, t.failure)
}

// awaitMasters waits while too few masters have a vote, and it is others that find out whether they are back. It returns why the call must leave
// meanwhile, or nil.
func (t *contender) awaitMasters(ctx context.Context) error {
	first := t.callers[0]
	if first.try || !t.shared.lacksMasters.Load() {
		return nil
	}
	for pause := waitLeast; ; pause = min(2*pause, absentMost) {
		absent := t.shared.absentAmong(t.callers)
		if absent == nil {
			t.shared.lacksMasters.Store(false)
			return nil
		}
		rest := absent.rest(first)
		if rest <= 0 || t.shared.mayAsk() {
			return nil
		}
		if absent.err.RetryAfter > rest { // it is known that they come too late
			return absent.err
		}
		if t.failure == nil {
			t.failure = absent.err
		}
		if err := t.sleep(ctx, min(jitter(pause), rest)); err != nil {
			return err
		}
	}
}

// sleep returns why the call must leave meanwhile, or nil.
func (t *contender) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-t.shared.closing:
	}
	return t.shared.stopped(ctx, t.failure)
}

// end gives the place of an attempt back, if it had one.
func (t *contender) end(late bool) {
	if t.paced {
		t.paced = false
		t.shared.pace.end(late)
	}
}

// win waits until the attempts have won all keys, within the timeout of one round for the grants and of one
// for the fences, and returns nil; otherwise it returns one of the attempts that are lost. All locks of a
// call get the largest of their fences, so that the call has one fencing token.
func (t *contender) win(ctx context.Context, attempts []*vote.Attempt) (lost *vote.Attempt) {
	var fence int64
	within := t.round(attempts)
	for _, a := range attempts {
		if lost == nil && !a.Win(ctx, &within) {
			lost = a
		}
		fence = max(fence, a.Fence)
	}
	if lost != nil {
		return lost
	}
	for _, a := range attempts {
		a.Raise(fence)
	}
	attempts[0].SendSoon()
	within = t.round(attempts)
	allowed := t.shared.heart.allows(ctx, t.shared.closing, time.Now().Add(within.Rest), attempts[len(attempts)-1].Until())
	for _, a := range attempts {
		if !allowed || !a.Raised(ctx, &within) || vote.Past(a.Until()) {
			lost = a
		}
	}
	return lost
}

// round returns the time of a round, for which those behind this call wait.
func (t *contender) round(attempts []*vote.Attempt) vote.Span {
	others := t.room[:0]
	for _, c := range t.callers {
		others = append(others, &c.until)
	}
	return vote.NewSpanOf(attempts[0].Timeout, t.shared.gates.began, others)
}

// insist reports whether a call for several keys, which has just met another one, should try again at once. Where such calls want
// overlapping keys, each may win one and give it back, by turns. So one that is refused in favor of another which may be about to give
// the key back, gives back what it has, but keeps its place for all of its keys: the oldest call is granted all, as no younger
// one is granted any of them. As the other one may have won, this lasts for the timeout of a round only: then the call keeps nobody from
// keys that are free.
func (t *contender) insist(ctx context.Context, attempts []*vote.Attempt, lost *vote.Attempt) bool {
	if !t.subscribed || lost.Unwoken || !slices.ContainsFunc(attempts, (*vote.Attempt).MetSeveral) {
		return false
	}
	if t.insists.IsZero() {
		t.insists = time.Now().Add(lost.Timeout)
	}
	rest := time.Until(t.insists)
	if rest <= 0 {
		return false
	}
	t.shared.release(attempts, attempts...)
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-t.callers[slices.Index(attempts, lost)].wakeUps:
		t.via = ViaWoken
		return true
	case <-timer.C:
	case <-ctx.Done():
	case <-t.shared.closing:
	}
	return false
}

// goesOn has the attempts of a call made anew, and reports true, where one of them is lost for a slot that others have, and the leader offers
// another one; or where a slot is this call's, and the masters that have refused it are about to learn that. Each attempt takes over what
// the one before has been granted.
func (t *contender) goesOn(ctx context.Context, attempts []*vote.Attempt, lost *vote.Attempt) bool {
	l, gap := t.shared, gap(lost.TTL)
	switch {
	case t.haste.rest(gap) > 0:
		t.again = 0
		return false
	case lost.Offer() > 0 && t.again < mostAgain && l.gates.offered(t.callers[slices.Index(attempts, lost)], lost.Offer()):
		t.again++
		t.trace(lost, l.failure(lost), 0, forOthers)
	case lost.IsFirst() && t.again < mostAgain:
		pause := jitter(releasePause << t.again)
		t.again++
		t.trace(lost, l.failure(lost), pause, forReleases)
		if t.sleep(ctx, pause) != nil {
			return false
		}
	default:
		t.again = 0
		return false
	}
	t.haste.ask(gap)
	start, proposal := time.Now(), l.number(t.callers...)
	for i, former := range attempts {
		c := t.callers[i]
		if offer := former.Offer(); offer > 0 && (former == lost || l.gates.offered(c, offer)) {
			former.ReleaseForOffer()
			former = nil
		}
		ask := l.wanted(c, former, start, proposal)
		ask.TakesOver = true
		attempts[i] = l.voters.Ask(ask)
	}
	attempts[0].SendSoon()
	return true
}

// hold makes the locks of attempts that have won, and returns the one that the caller gets.
func (t *contender) hold(ctx context.Context, attempts []*vote.Attempt) *Lock {
	l := t.shared
	var room [1]*Lock // enough for one key; saves an allocation
	parts := room[:0]
	for i, a := range attempts {
		parts = append(parts, newLock(ctx, l, a, t.callers[i], t.via))
	}
	if len(parts) > 1 {
		for _, part := range parts {
			part.whole = parts
		}
	}
	for _, part := range parts { // only now: from here on the lock may end
		if part.caller.slots > 1 {
			part.attempt.Withdraw()
		}
		l.gates.noteOutcome(part.caller, part, nil)
		l.keeper.keep(part)
		part.watch()
	}
	attempts[0].SendSoon()
	l.told.acquired(parts[0].acquisition)
	return parts[0]
}

// awaitRetry waits until it is time for the next attempt after this one of this caller was lost, or returns the error
// with which the call must leave.
func (t *contender) awaitRetry(ctx context.Context, a *vote.Attempt, awaited *caller) error {
	l := t.shared
	t.failure = l.failure(a)
	t.tellDifference(a, awaited)
	absent := l.gates.noteMasters(awaited, l.lacked(a, awaited.key))
	if absent != nil {
		l.lacksMasters.Store(true)
	}
	l.gates.noteOutcome(awaited, nil, t.failure)
	if a.LacksLeader() {
		awaited.unled++
	}
	try, sleep, what := t.callers[0].try, jitter(t.pause), forNobody
	var subscribed, wakeUps <-chan struct{}
	switch {
	case try && (t.tries > splitTries || !a.Split() && !a.LacksLeader()): // another holder has won, or nobody can
		t.trace(a, t.failure, 0, "")
		return t.failure
	case try:
		sleep, what = jitter(splitPause), forOthers
	case absent != nil && t.hopeless(ctx, a, absent.rest(awaited)):
		t.trace(a, absent.err, 0, "")
		return absent.err
	case !errors.Is(t.failure, ErrHeld): // masters have failed, and wake nobody
		t.pause, what = min(2*t.pause, waitMost), forMasters
	case t.subscribed && l.voters.Deny():
		t.trace(a, t.failure, 0, "")
		return endedBy(ErrNotWoken, t.failure)
	case a.IsFirst(), a.Offer() > 0: // others have votes for the slot, and the leader doesn't know of it, or offers in vain
		t.pause, what = min(2*t.pause, waitMost), forOthers
	case !t.subscribed && awaited.slots > 1 && !a.Unwoken: // all masters that refused have queued the call already
		t.willWait()
		l.subscriptions.begin()
		sleep, what = a.Patience(), forWakeUp
	case !t.subscribed:
		// Ask again once the subscriptions are made: what was published before is missed.
		t.willWait()
		l.gates.drainWakeUps(t.callers)
		subscribed, sleep, what = l.subscriptions.begin(), a.Timeout, forSubscriptions
	case !a.Unwoken: // all masters that refused have queued this process, and will wake it
		sleep, what = a.Patience(), forWakeUp
	default:
		t.pause = min(2*t.pause, waitMost)
	}
	if absent != nil {
		sleep = max(min(sleep, absent.rest(awaited)), soonest)
	}
	if t.subscribed && !a.IsFirst() && a.Offer() == 0 {
		wakeUps = awaited.wakeUps
	}
	sleep = max(min(sleep, a.TTL/3-time.Since(a.Start)), soonest) // our ticket is to last
	t.trace(a, t.failure, sleep, what)
	timer := time.NewTimer(sleep)
	defer timer.Stop()
	t.via = ViaPolled
	select {
	case <-wakeUps:
		t.via = ViaWoken
	case <-subscribed:
	case <-timer.C:
	case <-ctx.Done():
	case <-l.closing:
	}
	return l.stopped(ctx, t.failure)
}

// willWait notes that the call waits for wake-ups from now on.
func (t *contender) willWait() {
	t.subscribed = true
	for _, c := range t.callers {
		c.awaits = true
	}
}

// jitter returns a random pause of d on average.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// hopeless reports whether a call that lacks masters has waited for them for long enough, or whether it is known that they come too late: too many
// are excluded beyond the rest of its wait, by the restart guard or after a jump of the clock.
func (t *contender) hopeless(ctx context.Context, a *vote.Attempt, rest time.Duration) bool {
	end := time.Now().Add(rest)
	if deadline, ends := ctx.Deadline(); ends && deadline.Before(end) {
		end = deadline
	}
	return rest <= 0 || !a.CanWinBy(end)
}

// trace tells the Observer, if it wants to know, how an attempt has ended, and for what the call waits then.
func (t *contender) trace(a *vote.Attempt, err error, wait time.Duration, what string) {
	if !t.shared.told.traces() {
		return
	}
	event := Attempt{Token: shown(a.Token()), Number: t.tries, Via: t.via, Took: time.Since(a.Start), Err: err, Wait: wait, For: what}
	if err == nil {
		event.Fence = uint64(a.Fence)
	}
	for _, ballot := range a.Ballots() {
		event.Votes = append(event.Votes, voteOf(ballot))
	}
	t.shared.told.attempted(event)
}

// tellDifference notes that calls differ on how many may hold a key, where an attempt has met another one in line. The log says so once.
func (t *contender) tellDifference(a *vote.Attempt, c *caller) {
	for _, reply := range a.Refusals() {
		if n := reply.Elsewhere; n > 0 && n != a.Slots {
			if t.shared.differs.Swap(&otherSlots{int(n), time.Now()}) == nil {
				t.shared.logger.Warn("calls differ on how many may hold a key at the same time: the largest number holds, so give all rules and processes the same",
					"here", a.Slots, "elsewhere", n, "key_hash", KeyHash(protocol.KeyOf(t.shared.prefix, c.key)), "rule", c.label)
			}
		}
	}
}

// otherSlots is how many may hold a key by a call that was met in line.
type otherSlots struct {
	n  int
	at time.Time
}

// disagreements returns this if it was met a short while ago.
func (o *otherSlots) disagreements() []Disagreement {
	if o == nil || time.Since(o.at) > time.Minute {
		return nil
	}
	return []Disagreement{{Concurrency: o.n}}
}
