package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// state is the step at which a call is: an action or a wait. run calls the method for the state, and the method returns the next state.
// docs/DESIGN.md has a table of the states, in "Waiting and slots".
type state uint8

const (
	entering    state = iota // the call checks whether a lock or another call of this process comes before it
	hearing                  // a try-lock waits for the result of another call's attempt for the same key
	inLine                   // the call waits in line behind other calls of this process
	heading                  // no call of this process is before this one: it is the head for all of its keys. It waits until it may ask the masters
	asking                   // attempts are under way, and count toward the limit on the attempts of this process: see pace
	takingOver               // attempts are under way that follow the release of another lock, or this call's lost attempts, at once. They don't count toward the limit
	contending               // the call waits, because other calls have votes for the key, too: only a try-lock, or a call for a key with several holders
	releasing                // the call waits, because some masters haven't yet received the release of the slot that the call is to get: see IsFirst
	lacking                  // the call waits, because too many masters have failed or have no vote
	subscribing              // the call waits until the masters have answered the subscriptions that wake it
	queued                   // the call is in the queues of the masters, and waits until a master wakes it
	unwoken                  // the call is in the queues of the masters, but one of them can't wake it, so the call asks again after a pause
	insisting                // the call has several keys, and keeps its places for all of them during a short wait: see insistsOn
	holding
	failed
)

// waitsFor is the reason for the wait between two attempts, as an Observer sees it.
var waitsFor = [failed + 1]string{
	takingOver:  "others that have taken votes from it: a short time at random",
	contending:  "others that have taken votes from it: a short time at random",
	releasing:   "masters that are about to learn of a release",
	lacking:     "masters that have no vote",
	subscribing: "its subscriptions to wake-ups",
	queued:      "the wake-up of a master, or the end of a lease",
	unwoken:     "a time, as a master can't wake it",
}

// The pauses between attempts if no master wakes the call. The pause of a call that waits doubles up to waitMost, so a long wait costs the masters
// little. The pause after split votes is short, because the key may be free. It is also random, so that one of the callers asks first.
const (
	waitLeast  = 5 * time.Millisecond
	waitMost   = 100 * time.Millisecond
	splitPause = 3 * time.Millisecond
	splitTries = 4
	absentMost = time.Second // the longest pause of a call that knows from other calls that too few masters have a vote

	releasePause = time.Millisecond / 2 // the first pause in the state releasing; the pause doubles
	mostAgain    = 6
)

// call is a call of Lock or TryLock, for one key or several. The caller's goroutine takes the call from state to state until the call has the locks
// on all of its keys at once, or must leave. The call has a place at the gate of each key.
type call struct {
	*shared
	lockOptions
	ctx    context.Context // ends the wait and the attempts
	try    bool            // the call doesn't wait: a TryLock, or WithWait(0)
	began  time.Time
	limit  context.Context // ends when the call must not wait any longer; nil until the call begins to wait, and most calls never do
	cancel context.CancelFunc
	places []*place
	state  state

	order     uint64             // the call's number among all calls of this process; 0 before it enters
	ahead     int                // how many calls were before this one at its gate, including the calls that have a lock
	promoted  chan *vote.Attempt // receives a value when the call becomes the head: the attempt for a lock that was handed to it, or nil
	done      *DoneError         // the remembered result that the previous head has found on the masters; set before this call becomes the head, and only if the call wants results
	ticket    int64              // the call's ticket in the masters' queues, from its first attempt on; 0 while it isn't known
	asksUntil atomic.Int64       // the earliest possible end of the last attempt: a time.Duration since the gates began

	blocked *place       // the place at whose gate other calls of this process are before this one
	later   <-chan error // receives the result of the calls before this one, or is closed when this call should enter again

	lost       *place          // the place whose attempt is lost
	doubts     int8            // how often the call may still ask although other calls have found no quorum: see isDoubtful
	again      int8            // how often in a row the call has taken over its own lost attempt: see afterLoss
	subscribed bool            // the call counts as waiting for wake-ups
	tries      uint32          // how many attempts are over
	pause      time.Duration   // the pause before the next attempt if no master wakes the call; longer each time
	rest       time.Duration   // how long the call waits at most in its present state
	settled    <-chan struct{} // closed when the subscriptions for the call are made
	insists    time.Duration   // when the call gives up its places for all keys but one, as the time since began; 0 for not set: see insistsOn
	haste      haste
	via        string
	err        error // the error before the last wait; at the end, the reason why the call must leave

	roomForPlaces [1]*place // room for the places of a call with one key, the usual case; saves two allocations
	roomForPlace  place
}

// newCall returns a call in the state entering. keys are distinct.
func newCall(ctx context.Context, s *shared, keys []string, o lockOptions, try bool) *call {
	c := &call{shared: s, lockOptions: o, ctx: ctx, try: try || o.wait == 0, began: time.Now(), doubts: mostDoubts, pause: waitLeast, via: inside.ViaFree}
	c.places = c.roomForPlaces[:0]
	for i, key := range keys {
		p := &c.roomForPlace
		if i > 0 {
			p = &place{}
		}
		p.call, p.given, p.key, p.slots = c, key, protocol.Key(s.prefix, key), o.most(key)
		c.places = append(c.places, p)
	}
	return c
}

// wants reports whether the call wants the result of this key, as its caller has written it: calls for other spellings are in the same line.
func (c *call) wants(key string) bool { return c.recall && c.places[0].given == key }

func (c *call) several() bool { return len(c.places) > 1 }

func (c *call) run() (*Lock, error) {
	defer c.leave()
	for {
		switch c.state {
		case entering:
			c.state = c.enter()
		case hearing:
			c.state = c.hear()
		case inLine:
			c.state = c.standInLine()
		case heading:
			c.state = c.begin()
		case asking, takingOver:
			c.state = c.win()
		case releasing:
			c.state = c.awaitReleases()
		case contending, lacking, subscribing, queued, unwoken:
			c.state = c.awaitRetry()
		case insisting:
			c.state = c.insist()
		case holding:
			return c.hold(), nil
		case failed:
			return nil, c.err
		}
	}
}

func (c *call) leave() {
	if c.cancel != nil {
		c.cancel()
	}
	if c.subscribed {
		c.subscriptions.done()
	}
}

// fail ends a call that has no place at any gate. If a call before it has met a result that can't be read, and this call doesn't want that result, it
// only knows that another call comes before it.
func (c *call) fail(err error) state {
	if met := (*unreadableError)(nil); errors.As(err, &met) && !c.wants(met.key) {
		err = &HeldError{Err: met.Err}
	}
	c.err = err
	return failed
}

// giveUp ends a call that is the head at one or more gates.
func (c *call) giveUp(err error) state {
	c.release()
	c.gates.keepOnly(nil, c)
	return c.fail(err)
}

// stopped returns the reason why the call must leave, or nil. ctx bounds the present wait.
func (c *call) stopped(ctx context.Context) error {
	select {
	case <-c.closing:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx, c.err)
	default:
		return nil
	}
}

// sleep waits for d. It returns the reason if the call must leave earlier, and otherwise nil.
func (c *call) sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-c.closing:
	}
	return c.stopped(ctx)
}

// until returns the time at which the call's wait ends, or zero if only its context ends the wait.
func (c *call) until() (end time.Time) {
	if c.try || c.wait == untilDone {
		return end
	}
	return c.began.Add(c.wait)
}

func (c *call) waiting() context.Context {
	switch {
	case c.try || c.wait == untilDone:
		return c.ctx
	case c.limit == nil:
		c.limit, c.cancel = context.WithDeadline(c.ctx, c.until())
	}
	return c.limit
}

// enter tries to make the call the head for all of its keys. A call that has been refused by the masters is still the head for the refused key, and
// has a ticket for it. If another call comes before it for another key, the call gives up that place and that ticket, so that nobody waits behind a
// call that can't have all its keys yet.
func (c *call) enter() state {
	blocked, later, err := c.gates.enter(c, c.lost == nil, c.doubts > 0)
	c.blocked, c.later = blocked, later
	switch {
	case blocked == nil:
		return heading
	case c.lost != nil:
		c.lost.attempt.Release(false)
		c.lost.attempt.SendSoon()
		c.lost = nil
		c.gates.keepOnly(nil, c)
		return entering
	case err != nil:
		return c.fail(err)
	case c.try:
		return hearing
	}
	return inLine
}

// mostDoubts is how often a call asks the masters although other calls have found no quorum.
const mostDoubts = 2

// hear lets a try-lock wait until the first attempt of the call before it is over. Then the try-lock fails, or enters again.
func (c *call) hear() state {
	heard, at := c.blocked, c.blocked.gate
	switch err := c.awaitFirst(); {
	case err == errDoubtful:
		c.doubts--
	case err != nil:
		c.gates.moveOn(heard, at)
		return c.fail(err)
	}
	next := c.enter()
	if next == failed || next == hearing && c.blocked.gate != at {
		c.gates.moveOn(heard, at)
	}
	return next
}

// awaitFirst waits for the first attempt of the call before this one. It returns the reason why a try-lock gets no lock, or nil if the try-lock
// should enter again. It returns errDoubtful if the attempt has found no quorum, but there may be one by now.
func (c *call) awaitFirst() error {
	select {
	case met := <-c.later:
		if done, is := met.(*DoneError); is && !c.wants(done.key) {
			return nil
		}
		return met
	case <-c.ctx.Done():
		return ended(c.ctx, nil)
	case <-c.closing:
		return ErrClosed
	}
}

// standInLine waits until the call becomes the head. The call's wait may end during the first attempt of the call before it. Then this call waits for
// that attempt, too, because its result shows whether anybody has the lock. This takes no longer than masters may take to answer.
func (c *call) standInLine() state {
	err := error(nil)
	ctx := c.waiting()
	over := ctx.Done()
	long, reported := time.Now().Add(longWait), false
	look := time.NewTimer(min(longWait, max(c.absentHere().rest(c.masters), soonest)))
	defer look.Stop()
	var first <-chan error
	var met error
	var most *time.Timer
	var enough <-chan time.Time
	for err == nil {
		select {
		case a := <-c.promoted:
			return c.becomeHead(a)
		case now := <-look.C:
			if !reported && !now.Before(long) {
				c.tellLongWait()
				reported = true
			}
			absent := c.absentHere()
			rest := absent.rest(c.masters)
			if rest <= 0 && absent != nil {
				err = absent.err
				continue
			}
			if rest = max(rest, waitMost); !reported {
				rest = min(rest, max(time.Until(long), soonest))
			}
			look.Reset(rest)
			continue
		case <-over:
			over = c.ctx.Done()
			if enough == nil {
				most = time.NewTimer(c.voters.Patience(c.blocked.key))
				defer most.Stop()
				enough = most.C
			}
		case met = <-first:
			switch {
			case met == errDoubtful:
				met = nil
				c.doubts--
			case errors.Is(met, ErrDone): // a call that wants results is about to become the head, and finds this result in done
				met = nil
			}
		case <-enough:
			if rest := c.gates.underWay(c); rest > 0 {
				most.Reset(rest)
				continue
			}
			if met = c.gates.lastMet(c); met == nil {
				err = becauseError{ErrBusy, ctx.Err()}
			} else {
				err = ended(ctx, met)
			}
			continue
		case <-c.closing:
			err = ErrClosed
			continue
		}
		var refusal error
		if first, refusal = c.gates.refusalInLine(c, c.doubts > 0); refusal == nil {
			refusal = met
		}
		leaves := c.ctx.Err() != nil
		if refusal == nil && leaves { // the error of the calls before this one says more than the context's
			refusal = c.gates.lastMet(c)
		}
		if refusal != nil || leaves {
			err = ended(ctx, refusal)
		}
	}
	if !c.gates.giveUp(c) { // the call has just become the head, and must release the lock that may have been handed to it
		if a := <-c.promoted; a != nil {
			a.Release(false)
		}
		c.gates.keepOnly(nil, c)
	}
	return c.fail(err)
}

func (c *call) becomeHead(handed *vote.Attempt) state {
	switch {
	case c.done != nil:
		return c.fail(c.done)
	case handed == nil:
		return heading
	}
	c.via, c.blocked.attempt = inside.ViaPassed, handed
	return takingOver
}

// handOn makes the place's call the head. Its attempt begins at once, behind the release of the previous lock. former is the attempt of the previous
// lock, or nil if its release was sent separately.
func (p *place) handOn(former *vote.Attempt) {
	proposal := p.number()
	p.promoted <- p.ask(vote.Ask{Former: former, Start: time.Now(), Fence: proposal})
}

// longWait is how long a call waits for a lock of its own process before the log says so. If the holder of that lock waits for the call, neither
// ends.
const longWait = 10 * time.Second

// tellLongWait tells the Observer, and at most once a minute the log, that the call waits for a lock that this process held before the call came.
func (c *call) tellLongWait() {
	holder, due := c.gates.heldSince(c.blocked)
	if holder == nil {
		return
	}
	if c.reporter.traces() {
		c.reporter.attempted(attempt{Via: inside.ViaFree, Took: time.Since(c.began), For: fmt.Sprintf("a lock which this very process holds, with fence %d", holder.Fence())})
	}
	if due {
		c.logger.Info("a call has waited for 10 seconds for a lock that this process has held since before. If the holder waits for this call, neither ends",
			"label", c.label, "holder_label", holder.call.label, "fence", holder.Fence())
	}
}

// haste bounds how often a call asks masters, whatever they reply and however often they wake it. The call may ask mostHaste times at once, and then
// once in each gap on average. The zero value is for a call that hasn't asked yet.
type haste struct{ full time.Time } // the time from which the call may ask mostHaste times at once

const (
	mostHaste = 10
	askGap    = 50 * time.Millisecond
)

// gap returns askGap, or a third of the TTL if that is shorter, because the call's tickets would end if it asked less often.
func gap(ttl time.Duration) time.Duration { return min(askGap, ttl/3) }

// rest returns how long the call must wait before it asks again.
func (h *haste) rest(gap time.Duration) time.Duration {
	return time.Until(h.full.Add(-(mostHaste - 1) * gap))
}

func (h *haste) ask(gap time.Duration) {
	if now := time.Now(); h.full.Before(now) {
		h.full = now
	}
	h.full = h.full.Add(gap)
}

func (c *call) begin() state {
	if slices.ContainsFunc(c.voters.Streams, vote.Stream.Subscribed) {
		c.gates.drainWakeUps(c) // the new attempt finds out whether the key is free, so an earlier wake-up says nothing new
	}
	if err := c.awaitPlace(); err != nil {
		return c.giveUp(err)
	}
	start := time.Now()
	proposal := c.number()
	for _, p := range c.places { // all places have the same proposal and start, so that all locks of the call have the same fence and expire together
		p.attempt = p.ask(vote.Ask{Start: start, Fence: proposal})
	}
	c.sendSoon()
	return asking
}

func (c *call) awaitPlace() error {
	if err := c.awaitMasters(); err != nil {
		return err
	}
	gap := gap(c.ttl)
	if rest := c.haste.rest(gap); rest > 0 {
		if err := c.sleep(c.waiting(), rest); err != nil {
			return err
		}
	}
	c.haste.ask(gap)
	if c.pace.begin(c.ctx, c.closing, c.placeBy) {
		return nil
	}
	if err := c.stopped(c.ctx); err != nil {
		return err
	}
	if c.err == nil {
		c.err = ErrBusy
	}
	if c.try {
		return c.err
	}
	return endedBy(context.DeadlineExceeded, c.err)
}

// placeBy returns until when the call waits for the pace to admit its attempt, or the zero time if only its context ends that wait. A call that has
// made no attempt waits at least as long as masters may take to answer, so that a call with a short wait is admitted as often as a try-lock.
func (c *call) placeBy() time.Time {
	until := c.until()
	if c.tries > 0 || until.IsZero() && !c.try {
		return until
	}
	least := time.Now().Add(c.voters.Patience(c.places[0].key))
	if least.Before(until) {
		return until
	}
	return least
}

// awaitMasters waits while too few masters have a vote. It returns nil when enough masters have one, when it is this call's turn to ask the masters
// again, or when the wait for masters is over. Otherwise it returns the reason why the call must leave.
func (c *call) awaitMasters() error {
	if c.try || !c.lacksMasters.Load() {
		return nil
	}
	for pause := waitLeast; ; pause = min(2*pause, absentMost) {
		absent := c.absent()
		if absent == nil {
			c.lacksMasters.Store(false)
			return nil
		}
		rest := absent.rest(c.masters)
		if rest <= 0 || c.mayAsk() {
			return nil
		}
		if absent.err.RetryAfter > rest { // the restart guards end after the call's wait for masters
			return absent.err
		}
		if c.err == nil {
			c.err = absent.err
		}
		if err := c.sleep(c.waiting(), min(jitter(pause), rest)); err != nil {
			return err
		}
	}
}

func (c *call) absentHere() *absence {
	absent, held := c.gates.absence(c)
	if held {
		return nil
	}
	return cmp.Or(absent, c.absent())
}

func (c *call) absent() (absent *absence) {
	for i := 0; absent == nil && i < len(c.places); i++ {
		absent = c.absentFor(c.places[i].key)
	}
	return absent
}

// number gives the call its ticket: the time when the call came, on the masters' clocks. It returns the present time on the masters' clocks, from
// which the call's fence is proposed. While too few masters' clocks are known, the ticket stays 0. A ticket from this process's own clock could put
// its calls before, or behind, all calls of other processes. A ticket in the future is replaced: the masters' clocks were set back since, and the
// call would be behind all others until then.
func (c *call) number() (now int64) {
	now, known := c.voters.Time()
	if known && (c.ticket == 0 || c.ticket > now) {
		c.ticket = now - time.Since(c.began).Microseconds()
	}
	return now
}

// ask sends an acquire for the key to all masters. Its caller sets the fields that differ between the attempts of a call. If Former is set, each
// command first releases that attempt. Former is the attempt of a lock that is handed on to this call, or a lost attempt of this call.
func (p *place) ask(ask vote.Ask) *vote.Attempt {
	if p.tickets == nil {
		p.tickets = append(p.room[:0], make([]link.TicketState, len(p.voters.Streams))...)
	}
	ask.Key, ask.Given, ask.TTL, ask.Process, ask.Ticket, ask.Tickets = p.key, protocol.Given(p.given), p.ttl, p.name, p.ticket, p.tickets
	ask.Queue, ask.Recall, ask.Several, ask.Slots = !p.try && p.ticket > 0, p.recall, p.several(), p.slots
	ask.Fast = p.tries == 0 && p.ahead == 0 && p.slots == 1
	if p.slots > 1 {
		ask.Process = protocol.CallName(p.name, p.order)
		ask.Slot = func() (uint16, bool) { return p.gates.chooseSlot(p) }
	}
	return p.voters.Ask(ask)
}

// win completes the attempts that are under way, even if the time of WithWait is over. Only the end of c.ctx abandons them.
func (c *call) win() state {
	c.lost = c.collect()
	if c.state == asking {
		c.pace.end(c.lost != nil && c.lost.attempt.Late)
	}
	c.tries++
	if c.lost == nil {
		return holding
	}
	if result := c.lost.attempt.Recall(c.ctx); result != nil {
		done := &DoneError{Result: []byte(result.Data), Fence: uint64(result.Fence), Keep: result.Keep, key: c.lost.given}
		c.trace(c.lost.attempt, done, 0, failed)
		c.gates.met(c.lost.gate, done)
		c.gates.keepOnly(nil, c)
		return c.fail(done)
	}
	if err := c.stopped(c.ctx); err != nil {
		return c.giveUp(err)
	}
	return c.afterLoss()
}

// collect waits for the grants, for at most the timeout of one round. Then it waits until the fences are stored and the heart allows the locks, again
// for at most one timeout. It returns nil if all keys are won, or a place whose attempt is lost. All locks of a call get the largest of their fences,
// so that the call has one fencing token.
func (c *call) collect() (lost *place) {
	var fence int64
	within := c.round()
	for _, p := range c.places {
		if lost == nil && !p.attempt.Win(c.ctx, &within) {
			lost = p
		}
		fence = max(fence, p.attempt.Fence)
	}
	if lost != nil {
		return lost
	}
	for _, p := range c.places {
		p.attempt.Raise(fence)
	}
	c.sendSoon()
	within = c.round()
	allowed := c.heart.allows(c.ctx, c.closing, time.Now().Add(within.Rest), c.places[len(c.places)-1].attempt.Until())
	for _, p := range c.places {
		if !allowed || !p.attempt.Raised(c.ctx, &within) || vote.Past(p.attempt.Until()) {
			lost = p
		}
	}
	return lost
}

// round returns the time that masters have for a round. The calls in line behind this one read the round's end from asksUntil.
func (c *call) round() vote.Span {
	return vote.NewSpanOf(c.places[0].attempt.Timeout, c.gates.began, &c.asksUntil)
}

func (c *call) sendSoon() { c.places[0].attempt.SendSoon() }

func (c *call) hold() *Lock {
	var room [1]*Lock // room for the lock of one key; saves an allocation
	parts := room[:0]
	for _, p := range c.places {
		c.trace(p.attempt, nil, 0, holding)
		parts = append(parts, newLock(p))
	}
	if len(parts) > 1 {
		for _, part := range parts {
			part.whole = parts
		}
	}
	for _, part := range parts { // only now, because the keeper and the timer may end the lock from here on
		if part.place.slots > 1 {
			part.attempt.Withdraw()
		}
		c.gates.noteOutcome(part.place, part, nil)
		c.keeper.keep(part)
		part.watch()
	}
	c.sendSoon()
	c.reporter.acquired(parts[0].acquisition)
	return parts[0]
}

// afterLoss chooses the next state after a lost attempt. In two cases the call makes a new attempt within milliseconds, up to mostAgain times: if the
// leader offers a different slot, or if the slot is this call's, but masters that have refused it haven't received the release of its former holder
// yet.
func (c *call) afterLoss() state {
	switch lost := c.lost.attempt; {
	case c.haste.rest(gap(c.ttl)) > 0:
	case lost.Offer() > 0 && c.again < mostAgain && c.gates.offered(c.lost, lost.Offer()):
		c.again++
		c.trace(lost, c.errorOf(lost), 0, takingOver)
		return c.takeOver()
	case lost.IsFirst() && c.again < mostAgain:
		c.rest, c.err = jitter(releasePause<<c.again), c.errorOf(lost)
		c.again++
		c.trace(lost, c.err, c.rest, releasing)
		return releasing
	}
	c.again = 0
	if c.insistsOn() {
		return insisting
	}
	return c.giveWay()
}

func (c *call) awaitReleases() state {
	if err := c.sleep(c.ctx, c.rest); err != nil {
		return c.giveUp(err)
	}
	return c.takeOver()
}

// takeOver makes new attempts. Each command also releases the grants of the former attempt, except where the leader offers a different slot: then a
// separate command releases them.
func (c *call) takeOver() state {
	c.haste.ask(gap(c.ttl))
	start, proposal := time.Now(), c.number()
	for _, p := range c.places {
		former := p.attempt
		if offer := former.Offer(); offer > 0 && (p == c.lost || c.gates.offered(p, offer)) {
			former.ReleaseForOffer()
			former = nil
		}
		p.attempt = p.ask(vote.Ask{Start: start, Fence: proposal, Former: former, TakesOver: true})
	}
	c.sendSoon()
	return takingOver
}

// insistsOn reports whether a call for several keys that a master has refused in favor of another such call should try again soon. If such calls want
// overlapping keys, each may win one key and give it back, in turn. So a refused call releases its locks, but keeps its places for all of its
// keys. Then the masters grant all keys to the oldest call, because they grant none to a younger call. If the other call has won, waiting with all
// places would keep free keys from other calls. So the call keeps them only for the timeout of one round.
func (c *call) insistsOn() bool {
	if !c.several() || !c.subscribed || c.lost.attempt.Unwoken || !slices.ContainsFunc(c.places, func(p *place) bool { return p.attempt.MetSeveral() }) {
		return false
	}
	now := time.Since(c.began)
	if c.insists == 0 {
		c.insists = now + c.lost.attempt.Timeout
	}
	c.rest = c.insists - now
	return c.rest > 0
}

// insist releases the locks that the call has won. It waits until a master wakes the call for the refused key, or c.rest is over.
func (c *call) insist() state {
	c.release(c.places...)
	timer := time.NewTimer(c.rest)
	defer timer.Stop()
	select {
	case <-c.lost.wakeUps:
		c.via = inside.ViaWoken
		return heading
	case <-timer.C:
	case <-c.waiting().Done():
	case <-c.closing:
	}
	return c.giveWay()
}

// release releases all grants of the attempts. The call keeps its tickets for the awaited keys.
func (c *call) release(awaited ...*place) {
	for _, p := range c.places {
		if p.attempt != nil {
			p.attempt.Release(slices.Contains(awaited, p))
		}
	}
	if c.places[0].attempt != nil {
		c.sendSoon()
	}
}

// giveWay makes the call wait for the key that was refused. It leaves the other keys to other calls, at the gates and on the masters.
func (c *call) giveWay() state {
	c.release(c.lost)
	c.err = c.errorOf(c.lost.attempt)
	if c.several() {
		c.gates.noteSilence(c, c.err)
	}
	c.gates.keepOnly(c.lost, c)
	c.insists = 0
	c.tellDifference()
	absent := c.gates.noteMasters(c.lost, c.lacked(c.lost.attempt, c.lost.key))
	if absent != nil {
		c.lacksMasters.Store(true)
	}
	c.gates.noteOutcome(c.lost, nil, c.err)
	if c.lost.attempt.LacksLeader() {
		c.lost.unled++
	}
	next := c.chooseWait(absent)
	if next == failed {
		return next
	}
	if absent != nil {
		c.rest = max(min(c.rest, absent.rest(c.masters)), soonest)
	}
	c.rest = max(min(c.rest, c.ttl/3-time.Since(c.lost.attempt.Start)), soonest) // the call must ask again before its ticket expires on the masters
	c.trace(c.lost.attempt, c.err, c.rest, next)
	return next
}

// chooseWait returns the state in which the call waits before its next attempt, and sets c.rest to the longest wait. If the call should not try
// again, chooseWait ends it.
func (c *call) chooseWait(absent *absence) state {
	lost := c.lost.attempt
	c.rest = jitter(c.pause)
	switch {
	case c.try && (c.tries > splitTries || !lost.Split() && !lost.LacksLeader()): // another call has won, too few masters can vote, or all tries are used
		c.trace(lost, c.err, 0, failed)
		return c.giveUp(c.err)
	case c.try:
		c.rest = jitter(splitPause)
		return contending
	case absent != nil && c.hopeless(absent.rest(c.masters)):
		c.trace(lost, absent.err, 0, failed)
		return c.giveUp(absent.err)
	case !errors.Is(c.err, ErrHeld): // too few masters have answered, so no wake-up may come
		c.pause = min(2*c.pause, waitMost)
		return lacking
	case c.subscribed && c.voters.Deny():
		c.trace(lost, c.err, 0, failed)
		return c.giveUp(endedBy(ErrNotWoken, c.err))
	case lost.IsFirst(), lost.Offer() > 0: // the leader grants or offers this call a slot, but other masters refuse it
		c.pause = min(2*c.pause, waitMost)
		return contending
	case !c.subscribed && c.lost.slots > 1 && !lost.Unwoken: // other calls of this process have subscribed before, so all masters that refused this call have put it into their queues
		c.subscribed = true
		c.subscriptions.begin()
		c.rest = lost.Patience()
		return queued
	case !c.subscribed:
		// Wake-ups from before the subscriptions are missed, so the call asks again once they are made.
		c.subscribed = true
		c.gates.drainWakeUps(c)
		c.settled, c.rest = c.subscriptions.begin(), lost.Timeout
		return subscribing
	case !lost.Unwoken: // all masters that refused have put this process into their queues
		c.rest = lost.Patience()
		return queued
	}
	c.pause = min(2*c.pause, waitMost)
	return unwoken
}

func (c *call) awaitRetry() state {
	var wakeUps, settled <-chan struct{}
	if c.subscribed && !c.lost.attempt.IsFirst() && c.lost.attempt.Offer() == 0 {
		wakeUps = c.lost.wakeUps
	}
	if c.state == subscribing {
		settled = c.settled
	}
	timer := time.NewTimer(c.rest)
	defer timer.Stop()
	c.via = inside.ViaPolled
	select {
	case <-wakeUps:
		c.via = inside.ViaWoken
	case <-settled:
	case <-timer.C:
	case <-c.waiting().Done():
	case <-c.closing:
	}
	if err := c.stopped(c.waiting()); err != nil {
		return c.giveUp(err)
	}
	if !c.several() {
		return heading
	}
	c.doubts = mostDoubts
	return entering
}

// hopeless reports whether a call for which too few masters have a vote should give up: it has waited long enough for them, or a restart guard or a
// jump of a clock excludes too many masters for longer than the rest of its wait.
func (c *call) hopeless(rest time.Duration) bool {
	end := time.Now().Add(rest)
	if deadline, ends := c.waiting().Deadline(); ends && deadline.Before(end) {
		end = deadline
	}
	return rest <= 0 || !c.lost.attempt.CanWinBy(end)
}

// trace tells an Observer with Attempted how an attempt has ended, and the reason for the call's next wait.
func (c *call) trace(a *vote.Attempt, err error, wait time.Duration, next state) {
	if !c.reporter.traces() {
		return
	}
	event := attempt{Token: protocol.Shown(a.Token()), Number: int(c.tries), Via: c.via, Took: time.Since(a.Start), Votes: a.Ballots(), Err: err, Wait: wait, For: waitsFor[next]}
	if err == nil {
		event.Fence = uint64(a.Fence)
	}
	c.reporter.attempted(event)
}

func (c *call) errorOf(a *vote.Attempt) error {
	if err := c.excluded(); err != nil && !a.MetResult() {
		return err
	}
	switch v := a.Verdict(); v.Why {
	case vote.Held:
		return &HeldError{RetryAfter: v.RetryAfter, Slots: v.Slots}
	case vote.Unreadable:
		return &unreadableError{Masters: masterErrors(v.Failed), key: c.places[0].given}
	default:
		return noQuorum(c.voters, v)
	}
}

// tellDifference notes a call in the masters' queues that allows a different number of holders of the key, if the lost attempt has met one. It logs
// only the first of them.
func (c *call) tellDifference() {
	for _, reply := range c.lost.attempt.Refusals() {
		if n := reply.Elsewhere; n > 0 && n != c.lost.attempt.Slots {
			if c.differs.Swap(&otherSlots{int(n), time.Now()}) == nil {
				c.logger.Warn("calls differ on how many may hold a key at the same time: the largest number holds, so give all rules and processes the same",
					"here", c.lost.attempt.Slots, "elsewhere", n, "key_hash", lockname.Hash(c.lost.given), "rule", c.label)
			}
		}
	}
}
