package redlock

import (
	"cmp"
	"container/list"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// gates has a gate for each key that this process has locked or wants to lock.
type gates struct {
	mu             sync.Mutex
	byKey          map[string]*gate
	came           uint64
	longWaitLogged time.Time // when the log last named a call that waits long

	began     time.Time
	firstSlot int                   // where this process starts its search for a free slot
	canAsk    func(key string) bool // reports whether a quorum takes commands for a key now
}

// gate is the queue of this process's calls for one key, in the order in which they came. For a key with n slots, at most n calls have a slot or ask
// the masters for one; all others stand in line. A call for several keys stands in line at all its gates, and asks at all of them at once. While such
// a call can't ask, the calls behind it go first. So if nobody has a slot or asks at a gate, only calls for several keys are in its line. A gate
// exists while it has a lock or a call.
type gate struct {
	key    string
	locks  []*Lock
	asking []*place
	line   queue    // calls behind the calls that ask
	hear   []hearer // calls that wait for the result of an attempt
	last   error    // the result of the last attempt; nil if it got the lock
	absent *absence // the last attempt has found that too few masters have a vote; nil if it has found enough, or if no call asks

	roomToHold [1]*Lock // room for one lock and one call that asks, which is enough for most gates; saves two allocations
	roomToAsk  [1]*place
}

// hearer is a call that waits for the result of other calls: a try-lock, or a call in line whose own wait is over. Its channel receives that result,
// or is closed when the hearer should enter again.
type hearer struct {
	*place
	outcome chan error
}

// queue has calls in the order in which they came. A call leaves it in constant time, so that thousands of calls that give up at the same time delay
// no other key. The zero value is empty.
type queue struct{ places list.List }

func (q *queue) len() int { return q.places.Len() }

// all yields the calls. The loop may drop the call that it was just given.
func (q *queue) all() iter.Seq[*place] {
	return func(yield func(*place) bool) {
		for e := q.places.Front(); e != nil; {
			p := e.Value.(*place)
			e = e.Next()
			if !yield(p) {
				return
			}
		}
	}
}

func (q *queue) first() *place {
	for p := range q.all() {
		return p
	}
	return nil
}

// join puts a call before all calls that came after it, and returns how many calls are ahead of it.
func (q *queue) join(p *place) (ahead int) {
	ahead = q.len()
	after := q.places.Back()
	for ; after != nil && after.Value.(*place).order > p.order; after = after.Prev() {
		ahead--
	}
	if after == nil {
		p.element = q.places.PushFront(p)
	} else {
		p.element = q.places.InsertAfter(p, after)
	}
	return ahead
}

func (q *queue) drop(p *place) (dropped bool) {
	if p.element == nil {
		return false
	}
	q.places.Remove(p.element)
	p.element = nil
	return true
}

// maxAsking bounds how many calls of one process ask the masters for slots of one key at a time.
const maxAsking = 16

type place struct {
	*call
	given   string              // the key as the caller has written it, by which results go
	key     string              // the name of the lock on the masters, which several spellings of a key share
	slots   int                 // how many may hold the key at once
	unled   int                 // how many lost attempts no leader has answered. After each, the call asks for a different slot
	attempt *vote.Attempt       // the call's last attempt for the key; nil before the first
	gate    *gate               // the gate at which the place is, or was last
	ownGate gate                // room for the gate, if this call is the first at it; saves an allocation
	tickets []link.TicketState  // for each master, whether it may have the call's ticket; the master's stream guards the entry
	room    [5]link.TicketState // for tickets: enough for most calls, and saves an allocation

	// The mu of the gates guards the following fields.
	element *list.Element // in the line of its gate; nil if the place isn't in the line
	heads   bool          // the call asks for a slot at this gate
	asks    uint16        // 1 + the slot that an attempt under way asks for; 0 for none
	offer   uint16        // 1 + the slot that the leader has offered to the call; 0 for none
	failure error         // the error of the call's last attempt since it began to ask here; nil before
	wakeUps chan struct{} // signals that the key may be free; nil while the call can't be woken
}

// enter makes a call ask at the gates of all its keys at once, or at none. In the second case, blocked is a place where other calls or locks come
// before the call. Then the call joins the lines of all its gates if stand is true.
//
// A try-lock never stands in line. It gets the error with which the last attempt of the other calls has failed. While their first attempt is under
// way, it gets a channel instead. The channel receives that attempt's result, or is closed when the call should enter again. If doubts is true, a
// try-lock also gets a channel if the other calls have found no quorum, but there may be one by now.
func (g *gates) enter(c *call, stand, doubts bool) (blocked *place, later <-chan error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh := c.order == 0
	if fresh {
		g.came++
		c.order = g.came
	}
	for _, p := range c.places {
		if at := g.byKey[p.key]; blocked == nil && at != nil && !p.heads && at.full(p) {
			blocked, p.gate = p, at
		}
	}
	switch {
	case blocked == nil:
		for _, p := range c.places {
			g.startAsking(p)
		}
	case !stand:
	case c.try:
		if err = blocked.gate.refusal(); err == nil || doubts && g.isDoubtful(blocked.gate, err) {
			later, err = blocked.gate.nextOutcome(blocked), nil
		}
	case fresh && blocked.gate.line.len() >= c.maxWaiters:
		if err = blocked.gate.refusal(); err == nil || errors.Is(err, ErrHeld) {
			err = ErrTooManyWaiters
		} else {
			err = endedBy(ErrTooManyWaiters, err)
		}
	default:
		c.promoted = make(chan *vote.Attempt, 1)
		for _, p := range c.places {
			c.ahead = max(c.ahead, g.join(p))
		}
	}
	return blocked, later, err
}

func (g *gates) at(p *place) *gate {
	at := g.byKey[p.key]
	if at == nil {
		if at = &p.ownGate; at.key != "" { // the place has lent its gate before, and other calls may still use that gate
			at = &gate{}
		}
		at.key = p.key
		g.byKey[p.key] = at
	}
	return at
}

func (g *gate) full(p *place) bool {
	if g.busy() == 0 {
		return false
	}
	for older := range g.line.all() {
		if older.order >= p.order {
			break
		}
		if !older.several() || g.fullFor(older) { // if an older call for several keys can't ask because of another gate, this call may go before it
			return true
		}
	}
	return g.fullFor(p)
}

// fullFor reports whether this call may not ask now, because its attempt would compete with this process's own locks and calls. Then this process
// has, or asks for, as many slots as this call allows, or as many as a call that asks allows. A gate is also full if maxAsking calls ask.
func (g *gate) fullFor(p *place) bool { return g.fullBeside(p, 0) }

// fullBeside is fullFor at a gate where more further calls are about to ask.
func (g *gate) fullBeside(p *place, more int) bool {
	busy := g.busy() + more
	if busy == 0 {
		return false
	}
	return busy >= p.slots || len(g.asking)+more >= maxAsking ||
		slices.ContainsFunc(g.asking, func(asks *place) bool { return busy >= asks.slots })
}

func (g *gate) busy() int { return len(g.locks) + len(g.asking) }

func (g *gates) startAsking(p *place) {
	if p.heads {
		return
	}
	at := g.at(p)
	at.line.drop(p)
	p.gate, p.heads = at, true
	if at.asking == nil {
		at.asking = at.roomToAsk[:0]
	}
	if at.asking = append(at.asking, p); p.subscribed || p.slots > 1 { // wake-ups can reach the call from now on
		p.openWakeUps()
	}
}

func (g *gates) join(p *place) (ahead int) {
	at := g.at(p)
	p.gate = at
	return at.line.join(p) + at.busy()
}

// advance makes the oldest call in line that may ask do so, and returns its place, or nil if there is none. The caller signals the call that it is
// the head.
func (g *gates) advance(at *gate) *place {
	for p := range at.line.all() {
		if at.fullFor(p) {
			return nil // a younger call that allows more holders doesn't overtake the oldest call
		}
		if !g.blocked(p, at) {
			g.startAsking(p)
			for _, other := range p.places {
				g.startAsking(other)
			}
			return p
		}
	}
	return nil
}

// blocked reports whether the gate of another of the call's keys is full for it.
func (g *gates) blocked(p *place, at *gate) bool {
	return slices.ContainsFunc(p.places, func(other *place) bool {
		gate := g.byKey[other.key]
		return gate != at && gate != nil && gate.full(other)
	})
}

// leave removes locks from their gates. Then the next calls ask, and empty gates are removed.
func (g *gates) leave(locks ...*Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range locks {
		k.gate.leave(k)
	}
	for _, k := range locks {
		g.settle(k.gate)
	}
}

func (g *gate) leave(k *Lock) {
	g.locks = slices.DeleteFunc(g.locks, func(other *Lock) bool { return other == k })
}

func (g *gate) stopAsking(p *place) {
	p.heads, p.asks, p.offer, p.failure = false, 0, 0, nil
	g.asking = slices.DeleteFunc(g.asking, func(other *place) bool { return other == p })
}

// settle makes all calls in line ask that may, answers the hearers, and removes the gate if it has no locks and calls any more.
func (g *gates) settle(at *gate) {
	for next := g.advance(at); next != nil; next = g.advance(at) {
		next.promoted <- nil
	}
	if len(at.asking) == 0 {
		at.absent = nil
	}
	g.answer(at)
	if at.busy() == 0 && at.line.len() == 0 && g.byKey[at.key] == at {
		delete(g.byKey, at.key)
	}
}

// keepOnly makes a call leave all gates at which it asks, except at one place, or none.
func (g *gates) keepOnly(kept *place, c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var room [1]*gate
	left := room[:0]
	for _, p := range c.places {
		if p.heads && p != kept {
			p.gate.stopAsking(p)
			left = append(left, p.gate)
		}
	}
	for _, at := range left {
		g.settle(at)
	}
}

// giveUp removes a call from its lines. It returns false if the call has become the head meanwhile.
func (g *gates) giveUp(c *call) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.places[0].heads {
		return false
	}
	for _, p := range c.places {
		if p.gate != nil && p.gate.line.drop(p) {
			g.settle(p.gate)
		}
	}
	return true
}

// noteOutcome records how an attempt of a call has ended, and answers the hearers. lock is nil if the attempt has failed.
func (g *gates) noteOutcome(p *place, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := p.gate
	p.asks, p.failure = 0, failed
	at.last = failed
	if lock == nil {
		g.answer(at)
		return
	}
	at.absent = nil
	at.stopAsking(p)
	if at.locks == nil {
		at.locks = at.roomToHold[:0]
	}
	if lock.ending() == "" { // the lock may have ended on another key of the call, and so have left this gate
		at.locks = append(at.locks, lock)
	}
	g.settle(at)
}

// noteMasters notes at a place's gate that too few masters have a vote for its key or, if absent is nil, that enough have one. If the gate knows of
// an earlier absence, the returned absence has that beginning.
func (g *gates) noteMasters(p *place, absent *absence) *absence {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := p.gate
	if absent != nil && at.absent != nil && at.absent.since.Before(absent.since) {
		absent.since = at.absent.since
	}
	at.absent = absent
	return absent
}

// absence returns the absence of masters that the gates of a call in line know of. held reports whether the call waits for a lock of this process,
// and so doesn't wait for masters.
func (g *gates) absence(c *call) (absent *absence, held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range c.places {
		held = held || len(p.gate.locks) > 0
		absent = cmp.Or(absent, p.gate.absent)
	}
	return absent, held
}

// met hands a remembered result, which the head has found on the masters, to the hearers and to the calls in line that want it. All of these
// came before the masters gave the result, so it answers them, too. Thousands of calls cost the masters as much as one.
func (g *gates) met(at *gate, done *DoneError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.tell(done)
	for p := range at.line.all() {
		if p.wants(done.key) {
			at.line.drop(p)
			p.done = done
			p.promoted <- nil
		}
	}
}

// errDoubtful tells a hearer that an attempt has found no quorum, but that there may be one by now.
var errDoubtful = errors.New("ask again")

// isDoubtful reports whether an attempt has found no quorum, although a quorum of masters takes commands now. On a busy machine an attempt can be
// late although the masters are well. Thousands of calls may wait for the attempt, so one of them asks again before the others are refused.
func (g *gates) isDoubtful(at *gate, met error) bool {
	return errors.Is(met, ErrNoQuorum) && !errors.Is(met, ErrHeld) && g.canAsk(at.key)
}

// answer answers the hearers.
//
// If too few masters have answered the last attempt, the hearers wait while another attempt is undecided. Then they get the error of the calls that
// ask. They enter again if no call asks any more, or if the error is doubtful.
//
// Otherwise as many hearers enter again as the gate has room for. There may be thousands, so the others wait for the results of these calls.
func (g *gates) answer(at *gate) {
	var refusal error
	switch {
	case len(at.hear) == 0:
		return
	case at.last != nil && !errors.Is(at.last, ErrHeld):
		if refusal = at.last; len(at.asking) > 0 {
			if refusal = at.refusal(); refusal == nil {
				return
			}
		}
		if g.isDoubtful(at, refusal) {
			if slices.ContainsFunc(at.asking, func(p *place) bool { return p.try }) { // this try-lock is about to fail or to ask again, so the hearers wait for that
				return
			}
			refusal = errDoubtful
		} else if len(at.asking) == 0 {
			refusal = nil
		}
	case at.busy() > 0:
		if at.admit() > 0 {
			return
		}
		if refusal = at.refusal(); refusal == nil {
			return
		}
	}
	at.tell(refusal)
}

// admit makes as many try-locks enter again as the gate has room for, and returns their number. It also makes the hearers in line look again.
func (g *gate) admit() (admitted int) {
	g.hear = slices.DeleteFunc(g.hear, func(h hearer) (looks bool) {
		if looks = !h.try; h.try && !g.full(h.place) && !g.fullBeside(h.place, admitted) {
			admitted, looks = admitted+1, true
		}
		if looks {
			close(h.outcome)
		}
		return looks
	})
	return admitted
}

func (g *gate) tell(known error) {
	for _, h := range g.hear {
		if known != nil {
			h.outcome <- known
		} else {
			close(h.outcome)
		}
	}
	g.hear = nil
}

// moveOn removes a try-lock from the hearers of a gate that it has left, and lets other calls go on in its place.
func (g *gates) moveOn(p *place, at *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.hear = slices.DeleteFunc(at.hear, func(h hearer) bool { return h.place == p })
	g.settle(at)
}

// refusal returns the reason why the calls in line get no slot: this process has all slots, or the error of a call that asks. It is nil while the
// first attempt of a call is under way, if no call has met a holder: the masters may answer this attempt even if another attempt was late. A holder
// takes precedence over masters that don't answer. Otherwise a caller that works without the lock when masters fail would work while another holder
// has it.
func (g *gate) refusal() error {
	decided := true
	for _, p := range g.asking {
		if errors.Is(p.failure, ErrHeld) {
			return p.failure
		}
		decided = decided && p.failure != nil
	}
	switch {
	case !decided:
		return nil
	case len(g.locks) > 0 || len(g.asking) == 0:
		return g.held()
	}
	return g.asking[0].failure
}

// nextOutcome returns a channel that receives the result of an attempt at this gate, or is closed when the call should enter again.
func (g *gate) nextOutcome(p *place) (later <-chan error) {
	outcome := make(chan error, 1)
	g.hear = append(g.hear, hearer{p, outcome})
	return outcome
}

// refusalInLine returns the reason why a call in line gets no locks, or a channel that signals when the reason may be known. If doubts is true, a
// lack of masters that may be over by now is no reason.
func (g *gates) refusalInLine(c *call, doubts bool) (later <-chan error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var undecided *place
	for _, p := range c.places {
		at := p.gate
		if !at.full(p) {
			continue
		}
		switch refusal := at.refusal(); {
		case errors.Is(refusal, ErrHeld):
			return nil, refusal
		case refusal == nil, doubts && g.isDoubtful(at, refusal):
			undecided = p
		default:
			err = refusal
		}
	}
	if undecided != nil {
		return undecided.gate.nextOutcome(undecided), nil
	}
	return nil, err
}

// noteSilence notes at the gates of all keys of a call that too few masters have answered its attempt. The calls behind it may fail with that error,
// whichever key they wait for.
func (g *gates) noteSilence(c *call, failed error) {
	if errors.Is(failed, ErrHeld) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range c.places {
		p.gate.last = failed
	}
}

// toNote is how long it may take to note the result of an attempt after the attempt's end.
const toNote = 10 * time.Millisecond

// underWay returns how long the attempts at the gates of a call in line may still wait for masters; 0 if there are none, or if their time is over.
func (g *gates) underWay(c *call) (rest time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range c.places {
		for _, asks := range p.gate.asking {
			rest = max(rest, time.Duration(asks.asksUntil.Load())+toNote-time.Since(g.began))
		}
	}
	return rest
}

// lastMet returns the reason why a call in line gets no locks: a lock of this process, or the result of the last attempt. It is nil if none is known.
func (g *gates) lastMet(c *call) (met error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range c.places {
		switch at := p.gate; {
		case len(at.locks) > 0:
			return at.held()
		case errors.Is(at.last, ErrHeld):
			return at.last
		case met == nil:
			met = at.last
		}
	}
	return met
}

// wake passes on a master's wake-up for a key. If order is 0, a call that asks for a key with one slot gets it; otherwise the call with this order.
// If no call wants the key any more, wake calls the function otherwise, and holds mu meanwhile so that no call can enter.
func (g *gates) wake(key string, order uint64, otherwise func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, slot := protocol.SlotOf(key)
	at := g.byKey[line]
	if at == nil || at.busy() == 0 || !at.wake(order, slot) && order > 0 {
		otherwise()
	}
}

func (g *gate) wake(order uint64, slot int) bool {
	for _, p := range g.asking {
		switch {
		case order == 0 && p.slots == 1:
		case order > 0 && p.order == order:
			p.offer = uint16(slot + 1)
		default:
			continue
		}
		p.wake()
		return true
	}
	return false
}

func (p *place) wake() {
	select {
	case p.wakeUps <- struct{}{}:
	default:
	}
}

func (g *gates) drainWakeUps(c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range c.places {
		if !p.heads {
			continue
		}
		p.openWakeUps()
		select {
		case <-p.wakeUps:
		default:
		}
	}
}

func (p *place) openWakeUps() {
	if p.wakeUps == nil {
		p.wakeUps = make(chan struct{}, 1)
	}
}

// wakeAll wakes all calls that ask, because each may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		for _, p := range at.asking {
			p.wake()
		}
	}
}

type seenGate struct {
	locks   []*Lock
	waiting []*place // the calls that wait, in the order in which they will get the lock
}

// see returns a copy of the gate's locks and calls. Callers hold the mu of the gates.
func (g *gate) see() seenGate {
	return seenGate{locks: slices.Clone(g.locks), waiting: slices.AppendSeq(slices.Clone(g.asking), g.line.all())}
}

// key returns the key as the first holder has written it or, without one, the first call in line; empty without a call.
func (s *seenGate) key() string {
	switch {
	case len(s.locks) > 0:
		return s.locks[0].place.given
	case len(s.waiting) > 0:
		return s.waiting[0].given
	}
	return ""
}

// gatesAtOnce is how many gates seen copies before it unlocks mu for a moment.
const gatesAtOnce = 64

// seen yields copies of all gates, up to gatesAtOnce at a time. The copies are valid until the next yield. Gates that come or go meanwhile may be
// missing.
func (g *gates) seen() iter.Seq[[]seenGate] {
	return func(yield func([]seenGate) bool) {
		some := make([]seenGate, 0, gatesAtOnce)
		g.mu.Lock()
		for _, at := range g.byKey { // byKey may change while mu is unlocked, which Go allows during a range over a map
			if some = append(some, at.see()); len(some) < gatesAtOnce {
				continue
			}
			g.mu.Unlock()
			if !yield(withoutEnded(some)) {
				return
			}
			some = some[:0]
			g.mu.Lock()
		}
		g.mu.Unlock()
		yield(withoutEnded(some))
	}
}

// withoutEnded leaves out the locks that have ended since mu was unlocked.
func withoutEnded(some []seenGate) []seenGate {
	for i := range some {
		some[i].dropEnded()
	}
	return some
}

func (s *seenGate) dropEnded() {
	s.locks = slices.DeleteFunc(s.locks, func(k *Lock) bool { return k.own.Err() != nil })
}

const longWaitPause = time.Minute

// heldSince returns a lock of this process for whose end the call of p waits. It returns nil unless this process got all its locks on the key before
// the call came. due says whether it is time to log that the call waits.
func (g *gates) heldSince(p *place) (holder *Lock, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	locks := p.gate.locks
	if len(locks) == 0 || slices.ContainsFunc(locks, func(k *Lock) bool { return k.since().After(p.began) }) {
		return nil, false
	}
	now := time.Now()
	if due = g.longWaitLogged.IsZero() || now.Sub(g.longWaitLogged) >= longWaitPause; due {
		g.longWaitLogged = now
	}
	return locks[0], due
}

// held returns the error of a call that gets no slot, because calls of this process have, or ask for, all slots.
func (g *gate) held() *HeldError {
	held, most := &HeldError{}, 0
	for _, p := range g.asking {
		most = max(most, p.slots)
		if failed, ok := p.failure.(*HeldError); ok { // this call has met a lock of another process
			held.RetryAfter = max(held.RetryAfter, failed.RetryAfter)
		}
	}
	first := untilDone
	for _, k := range g.locks {
		most = max(most, int(k.attempt.Slots))
		first = min(first, time.Until(k.Until()))
	}
	if len(g.locks) > 0 {
		held.RetryAfter = max(0, first)
	}
	if most > 1 {
		held.Slots = most
	}
	return held
}

// nextFor makes the oldest call in line ask for the slot of a lock that ends, and returns the call's place. It returns nil
//
//   - if there is no such call, or another call already asks for the only slot;
//   - if the first call in line has several keys, wants remembered results, or allows too few holders to use this slot;
//   - if the lock needs a separate release: for a short result or, with several slots, for the ticket that its call may have on masters.
func (g *gates) nextFor(k *Lock) *place {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, slots := k.gate, k.attempt.Slots
	if len(at.asking) > 0 && slots == 1 || at.line.len() == 0 || k.result != nil || slots > 1 && k.attempt.MayHaveTicket() {
		return nil
	}
	if first := at.line.first(); first.several() || first.recall || (first.slots > 1) != (slots > 1) || first.slots <= k.Slot() {
		return nil
	}
	at.leave(k)
	next := g.advance(at)
	if next != nil {
		next.asks = 1 + k.attempt.Slot
	}
	g.settle(at)
	return next
}

func (g *gates) afterSlot(k *Lock) (next *place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := k.gate
	at.leave(k)
	if next = g.advance(at); next == nil {
		g.settle(at)
	}
	return next
}

func (g *gates) settleNow(at *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settle(at)
}

// chooseSlot returns the slot for which a call asks: the offered one, or the next slot that this process neither has nor asks for. offered reports
// whether the leader has offered it.
func (g *gates) chooseSlot(p *place) (chosen uint16, offered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, here, first := p.slots, p.gate, g.firstSlot+p.unled
	slot := int(p.offer) - 1
	if offered = 0 <= slot && slot < n && !here.has(slot); !offered {
		for slot = first % n; here.has(slot) || here.asksFor(slot); slot = (slot + 1) % n {
			if (slot+1)%n == first%n {
				break
			}
		}
	}
	p.asks, p.offer = uint16(1+slot), 0
	return uint16(slot), offered
}

// firstSlot returns the slot at which this process starts its search for a free slot. Processes that start at different slots seldom split votes.
func firstSlot(process string) int {
	var n uint32
	for _, c := range []byte(process) {
		n = 31*n + uint32(c)
	}
	return int(n % protocol.MaxSlots)
}

func (g *gate) has(slot int) bool {
	return slices.ContainsFunc(g.locks, func(k *Lock) bool { return int(k.attempt.Slot) == slot })
}

func (g *gate) asksFor(slot int) bool {
	return slices.ContainsFunc(g.asking, func(p *place) bool { return int(p.asks) == 1+slot })
}

// offered makes the next attempt of a call ask for the slot that the leader offers. It returns false if this process holds that slot: then the leader
// has lost the lock on it.
func (g *gates) offered(p *place, offer uint16) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.gate.has(int(offer) - 1) {
		return false
	}
	p.offer = offer
	return true
}

// count returns how many locks this process has (each slot of a key counts), when it took the oldest of them, and how many calls wait for locks.
func (g *gates) count() (held, waiting int, oldest time.Time) {
	several := make(map[*call]bool) // the calls for several keys, which may stand at several gates
	wait := func(p *place) {
		if p.several() {
			several[p.call] = true
		} else {
			waiting++
		}
	}
	for some := range g.seen() {
		for i := range some {
			at := &some[i]
			for _, k := range at.locks {
				held++
				if since := k.since(); oldest.IsZero() || since.Before(oldest) {
					oldest = since
				}
			}
			for _, p := range at.waiting {
				wait(p)
			}
		}
	}
	return held, waiting + len(several), oldest
}

// endByForce ends this process's lock with this token, if there is one, and reports whether it has. The lock's context ends before the next holder
// has the key.
func (g *gates) endByForce(key, token, by string) (ended bool) {
	lock := g.holding(key, token)
	if lock == nil {
		return false
	}
	lock.isForcedBy(by)
	return lock.end(inside.EndForced)
}

func (g *gates) holding(key, token string) *Lock {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, _ := protocol.SlotOf(key)
	if at := g.byKey[line]; at != nil {
		for _, k := range at.locks {
			if k.attempt.Token() == token && k.own.Err() == nil {
				return k
			}
		}
	}
	return nil
}

// lose ends this process's locks on a key as if their leases were over, and reports whether there were any.
func (g *gates) lose(key string) (lost bool) {
	var locks []*Lock
	g.mu.Lock()
	if at := g.byKey[key]; at != nil {
		locks = slices.Clone(at.locks)
	}
	g.mu.Unlock()
	for _, k := range locks {
		lost = k.end(inside.EndExpired) || lost
	}
	return lost
}
