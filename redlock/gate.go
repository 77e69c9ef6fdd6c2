package redlock

import (
	"cmp"
	"container/list"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// gates has a gate for each key that this process has locked or wants to lock.
type gates struct {
	mu    sync.Mutex
	byKey map[string]*gate
	came  uint64    // how many calls have come so far
	told  time.Time // when a call that waits long was logged last

	began  time.Time
	canAsk func(key string) bool // reports whether a quorum takes commands for a key now
}

// gate is where the calls for one key queue up within this process, in the order in which they came. Of a key with n slots so many calls
// as may hold it have a slot, or ask the masters for one; all others stand in line. A call for several keys stands in line at all its
// gates, and asks at all of them at once. While others keep it from that, those behind it go first: so a gate at which nobody asks, and
// nobody has a slot, has only such calls in its line. A gate exists as long as anybody is at it.
type gate struct {
	key    string
	locks  []*Lock   // that are held
	asking []*caller // in the order in which they came; so many places has this process in the masters' line
	line   queue     // behind those
	hear   []hearer  // who waits for an attempt
	last   error     // what the last attempt has met; nil if it got the lock
	absent *absence  // of masters, while some ask; nil if the last attempt has found enough

	roomToHold [1]*Lock // for locks and asking: mostly enough; saves two allocations
	roomToAsk  [1]*caller
}

// hearer is a try-lock, or a call in line whose wait is over, that waits for what others meet. It gets that, or its channel is closed when it
// should look again.
type hearer struct {
	*caller
	outcome chan error
}

// queue is calls in the order in which they came. One leaves it in no more time if thousands are in it: a crowd that gives up holds up
// no other key. Its zero value is empty.
type queue struct{ callers list.List }

func (q *queue) len() int { return q.callers.Len() }

// all yields the callers. The one that it has yielded may be dropped meanwhile.
func (q *queue) all() iter.Seq[*caller] {
	return func(yield func(*caller) bool) {
		for e := q.callers.Front(); e != nil; {
			c := e.Value.(*caller)
			e = e.Next()
			if !yield(c) {
				return
			}
		}
	}
}

// first returns the oldest, or nil.
func (q *queue) first() *caller {
	for c := range q.all() {
		return c
	}
	return nil
}

// join puts a caller before those that came after it, and returns how many are ahead.
func (q *queue) join(c *caller) (ahead int) {
	ahead = q.len()
	after := q.callers.Back()
	for ; after != nil && after.Value.(*caller).order > c.order; after = after.Prev() {
		ahead--
	}
	if after == nil {
		c.place = q.callers.PushFront(c)
	} else {
		c.place = q.callers.InsertAfter(c, after)
	}
	return ahead
}

// drop takes a caller out, if it is there.
func (q *queue) drop(c *caller) (dropped bool) {
	if c.place == nil {
		return false
	}
	q.callers.Remove(c.place)
	c.place = nil
	return true
}

// maxAsking bounds how many calls of one process ask for slots of one key at a time.
const maxAsking = 16

// caller is a call of Lock or TryLock at the gate of one key. A LockAll call has one for each key.
type caller struct {
	lockOptions
	key    string // as it is on the masters
	try    bool   // a TryLock: it doesn't wait
	awaits bool   // wake-ups
	// several says that the call is for more than one key, so that this lock alone is of no use to it.
	several bool
	tried   bool                // it has made an attempt
	unled   int                 // attempts of which no leader has said that no slot is free: each asks for another one
	call    []*caller           // for several keys, the callers of the call
	order   uint64              // of the call among all of this process; 0 before it enters
	gate    *gate               // where it is, or was last
	done    *DoneError          // what the head before it has met, if it wants that; set before its turn
	ownGate gate                // room for the gate, if this caller is the first at it; saves an allocation
	began   time.Time           // when the call began, on our clock
	ticket  int64               // its place in the masters' queues, from its first attempt on; 0 if not known yet
	ahead   int                 // callers before it when it entered
	turn    chan *vote.Attempt  // it is the head now; with an attempt if the lock before was handed on, else nil; one for a call
	tickets []link.TicketState  // the masters that may have its ticket; each stream guards its own
	room    [5]link.TicketState // for tickets: enough for most; saves an allocation

	until atomic.Int64 // when its last attempt is over, at the latest: a time.Duration since the gates began, on our monotonic clock

	// The mu of the gates guards these.
	place   *list.Element // in the line of its gate; nil if it isn't there
	heads   bool          // it asks for a slot at its gate
	slot    uint16        // asked for last
	trying  bool          // an attempt for it is under way
	offer   uint16        // 1 + the slot that it was offered; 0 for none
	met     bool          // an attempt is over since it asks here
	failure error         // of the last one
	wakeUps chan struct{} // signals that the key may be free; nil while nobody needs that
}

// enter has a call ask at the gates of all its keys at once, or at no further one: then others are in its way for
// the key of the caller that it returns, and if stand is set, the call stands in line. A try-lock never does: it gets the error
// with which their last attempt has failed or, while a first one is still under way, a channel that gets what
// that meets, or is closed when it should enter again. If doubts is set, it isn't told that there is no quorum where there may be one again.
func (g *gates) enter(callers []*caller, stand, doubts bool) (blocked *caller, later <-chan error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh := callers[0].order == 0
	if fresh {
		g.came++
	}
	for _, c := range callers {
		if fresh {
			c.order = g.came
		}
		if at := g.byKey[c.key]; blocked == nil && at != nil && !c.heads && at.full(c) {
			blocked, c.gate = c, at
		}
	}
	switch {
	case blocked == nil:
		for _, c := range callers {
			g.seat(c)
		}
	case !stand:
	case blocked.try:
		if err = blocked.gate.refusal(); err == nil || doubts && g.isDoubtful(blocked.gate, err) {
			later, err = blocked.gate.nextOutcome(blocked), nil
		}
	case fresh && blocked.gate.line.len() >= blocked.maxWaiters:
		if err = blocked.gate.refusal(); err == nil {
			err = blocked.gate.held()
		}
		err = endedBy(ErrTooManyWaiters, err)
	default:
		turn, ahead := make(chan *vote.Attempt, 1), 0
		for _, c := range callers {
			c.turn = turn
			ahead = max(ahead, g.join(c))
		}
		callers[0].ahead = max(callers[0].ahead, ahead)
	}
	return blocked, later, err
}

// at returns the gate of the caller's key, and makes it if there is none.
func (g *gates) at(c *caller) *gate {
	at := g.byKey[c.key]
	if at == nil {
		if at = &c.ownGate; at.key != "" { // it has been used, and others may know it
			at = &gate{}
		}
		at.key = c.key
		g.byKey[c.key] = at
	}
	return at
}

// full reports whether a caller can't ask for a slot now.
func (g *gate) full(c *caller) bool {
	if g.busy() == 0 {
		return false
	}
	for older := range g.line.all() {
		if older.order >= c.order {
			break
		}
		if !older.several || g.fullFor(older) { // a call for several keys may wait at another one of them, and keeps nobody from this one
			return true
		}
	}
	return g.fullFor(c)
}

// fullFor reports whether this process has, or asks for, as many slots as a caller allows, or one that asks: it would meet another one.
func (g *gate) fullFor(c *caller) bool { return g.fullBeside(c, 0) }

// fullBeside is fullFor for a caller beside so many more that are about to ask.
func (g *gate) fullBeside(c *caller, more int) bool {
	busy := g.busy() + more
	if busy == 0 {
		return false
	}
	return busy >= c.slots || len(g.asking)+more >= maxAsking ||
		slices.ContainsFunc(g.asking, func(asks *caller) bool { return busy >= asks.slots })
}

// busy returns how many slots this process has, or asks for.
func (g *gate) busy() int { return len(g.locks) + len(g.asking) }

// seat has a caller ask for a slot.
func (g *gates) seat(c *caller) {
	if c.heads {
		return
	}
	at := g.at(c)
	at.line.drop(c)
	c.gate, c.heads = at, true
	if at.asking == nil {
		at.asking = at.roomToAsk[:0]
	}
	if at.asking = append(at.asking, c); c.awaits || c.slots > 1 { // it can be woken from now on
		c.openWakeUps()
	}
}

// join puts a caller into the line of its gate, before those that came after it, and returns how many are ahead.
func (g *gates) join(c *caller) (ahead int) {
	at := g.at(c)
	c.gate = at
	return at.line.join(c) + at.busy()
}

// advance has the oldest caller in line ask that can, and returns it, or nil if there is none. It waits for a send to its turn.
func (g *gates) advance(at *gate) *caller {
	for c := range at.line.all() {
		if at.fullFor(c) {
			return nil // the oldest is first, however many it would let in
		}
		if !g.blocked(c, at) {
			g.seat(c)
			for _, other := range c.call {
				g.seat(other)
			}
			return c
		}
	}
	return nil
}

// blocked reports whether another call keeps that of a caller from one of its further keys.
func (g *gates) blocked(c *caller, at *gate) bool {
	return slices.ContainsFunc(c.call, func(other *caller) bool {
		gate := g.byKey[other.key]
		return gate != at && gate != nil && gate.full(other)
	})
}

// leave ends the time of locks at their gates: the next callers ask, or the gates go if nobody is at them.
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

func (g *gate) unseat(c *caller) {
	c.heads, c.offer, c.met, c.failure = false, 0, false, nil
	g.asking = slices.DeleteFunc(g.asking, func(other *caller) bool { return other == c })
}

// settle has those ask that can, and removes a gate at which nobody is.
func (g *gates) settle(at *gate) {
	for next := g.advance(at); next != nil; next = g.advance(at) {
		next.turn <- nil
	}
	if len(at.asking) == 0 {
		at.absent = nil
	}
	g.answer(at)
	if at.busy() == 0 && at.line.len() == 0 && g.byKey[at.key] == at {
		delete(g.byKey, at.key)
	}
}

// keepOnly has a call leave the gates at which it asks, but for that of one caller, or for none.
func (g *gates) keepOnly(kept *caller, callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var room [1]*gate
	left := room[:0]
	for _, c := range callers {
		if c.heads && c != kept {
			c.gate.unseat(c)
			left = append(left, c.gate)
		}
	}
	for _, at := range left {
		g.settle(at)
	}
}

// giveUp takes a call out of its lines. It reports false if it has become the head meanwhile.
func (g *gates) giveUp(callers []*caller) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if callers[0].heads {
		return false
	}
	for _, c := range callers {
		if c.gate != nil && c.gate.line.drop(c) {
			g.settle(c.gate)
		}
	}
	return true
}

// noteOutcome records how an attempt of a call has ended, and answers those who wait for that.
func (g *gates) noteOutcome(c *caller, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := c.gate
	c.trying, c.met, c.failure = false, true, failed
	at.last = failed
	if lock == nil {
		g.answer(at)
		return
	}
	at.absent = nil
	at.unseat(c)
	if at.locks == nil {
		at.locks = at.roomToHold[:0]
	}
	if lock.ending() == "" { // on another key of the call: it has left this gate
		at.locks = append(at.locks, lock)
	}
	g.settle(at)
}

// noteMasters notes that too few masters have a vote for the key of a caller, and since when, or that there are enough, if that is nil. It returns
// the whole of this absence.
func (g *gates) noteMasters(c *caller, absent *absence) *absence {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := c.gate
	if absent != nil && at.absent != nil && at.absent.since.Before(absent.since) {
		absent.since = at.absent.since
	}
	at.absent = absent
	return absent
}

// absence returns what is known here of masters that are too few for a call in line. A lock of this process for which it waits counts more.
func (g *gates) absence(callers []*caller) (absent *absence, held bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		held = held || len(c.gate.locks) > 0
		absent = cmp.Or(absent, c.gate.absent)
	}
	return absent, held
}

// met passes the result that the head has met on to the calls that stand in line for it, and to the try-locks that wait for its
// attempt: it was remembered while they waited. So thousands of calls cost the masters what one does.
func (g *gates) met(at *gate, done *DoneError) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.tell(done)
	for c := range at.line.all() {
		if c.recall {
			at.line.drop(c)
			c.done = done
			c.turn <- nil
		}
	}
}

// errDoubtful tells who waits for an attempt that it has found no quorum, and that there may be one now.
var errDoubtful = errors.New("ask again")

// isDoubtful reports whether what others have met is that there is no quorum, and masters take commands again: an attempt can be late although
// they are well, as on a busy machine. Thousands may wait for it, and one of them asks again before the others are told.
func (g *gates) isDoubtful(at *gate, met error) bool {
	return errors.Is(met, ErrNoQuorum) && !errors.Is(met, ErrHeld) && g.canAsk(at.key)
}

// answer tells those who wait for an attempt what is known now. Where too few masters have answered the last one, they wait for one that is
// still under way, and where there is none, all of them are told that at once; or, where it is doubtful, that they may ask themselves. Otherwise
// as many as there is room for look again, and the others wait for what those meet: there may be thousands.
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
			if slices.ContainsFunc(at.asking, func(c *caller) bool { return c.try }) { // it is about to leave room, or asks again at once
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

// admit has as many try-locks look again as there is room for, and all calls in line whose wait is over.
func (g *gate) admit() (admitted int) {
	g.hear = slices.DeleteFunc(g.hear, func(h hearer) (looks bool) {
		if looks = !h.try; h.try && !g.full(h.caller) && !g.fullBeside(h.caller, admitted) {
			admitted, looks = admitted+1, true
		}
		if looks {
			close(h.outcome)
		}
		return looks
	})
	return admitted
}

// tell tells all that wait for an attempt what is known, or that they should look again.
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

// moveOn has a try-lock wait at this gate no more. Others may go on in its place.
func (g *gates) moveOn(c *caller, at *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.hear = slices.DeleteFunc(at.hear, func(h hearer) bool { return h.caller == c })
	g.settle(at)
}

// refusal returns why those behind the calls that have slots here, or ask for them, get none: what the last attempts have met. It is nil
// while none has met a holder, and the first attempt of a call is under way: masters that answer that one are well, and another was late. A
// holder counts more than masters that don't answer: nobody may take those for a reason to do the work without a lock, while somebody has it.
func (g *gate) refusal() error {
	decided := true
	for _, c := range g.asking {
		if errors.Is(c.failure, ErrHeld) {
			return c.failure
		}
		decided = decided && c.met
	}
	switch {
	case !decided:
		return nil
	case len(g.locks) > 0 || len(g.asking) == 0:
		return g.held()
	}
	return g.asking[0].failure
}

// nextOutcome returns what tells when an attempt is over: all that ask do so for the first time, and one may be refused because of
// another.
func (g *gate) nextOutcome(c *caller) (later <-chan error) {
	outcome := make(chan error, 1)
	g.hear = append(g.hear, hearer{c, outcome})
	return outcome
}

// refusalInLine returns why a call gets none of the locks for which it stands in line, or what tells when that may be known. doubts is as in
// enter.
func (g *gates) refusalInLine(callers []*caller, doubts bool) (later <-chan error, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var undecided *caller
	for _, c := range callers {
		at := c.gate
		if !at.full(c) {
			continue
		}
		switch refusal := at.refusal(); {
		case errors.Is(refusal, ErrHeld):
			return nil, refusal
		case refusal == nil, doubts && g.isDoubtful(at, refusal):
			undecided = c
		default:
			err = refusal
		}
	}
	if undecided != nil {
		return undecided.gate.nextOutcome(undecided), nil
	}
	return nil, err
}

// noteSilence notes at the gates of all keys of a call that too few masters have answered its attempt: those behind it may be told so,
// whichever key it waits for.
func (g *gates) noteSilence(callers []*caller, failed error) {
	if errors.Is(failed, ErrHeld) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		c.gate.last = failed
	}
}

// toNote is for what an attempt has met to be noted after its time.
const toNote = 10 * time.Millisecond

// underWay returns for how long those who ask for the keys of callers in line wait for masters, at most: 0 if none of them does.
func (g *gates) underWay(callers []*caller) (rest time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		for _, asks := range c.gate.asking {
			rest = max(rest, time.Duration(asks.until.Load())+toNote-time.Since(g.began))
		}
	}
	return rest
}

// lastMet returns what is known of why callers in line get none of their keys: a holder here, or what the last attempt has met. It is nil
// if there was none.
func (g *gates) lastMet(callers []*caller) (met error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		switch at := c.gate; {
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

// wake passes a wake-up on to the call that asks for a key with one slot, or to that which it is for. If nobody here wants the key any
// more, it calls otherwise, with mu held so that no caller can enter meanwhile.
func (g *gates) wake(key string, call uint64, otherwise func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	line, slot := protocol.SlotOf(key)
	at := g.byKey[line]
	if at == nil || at.busy() == 0 || !at.wake(call, slot) && call > 0 {
		otherwise()
	}
}

func (g *gate) wake(call uint64, slot int) bool {
	for _, c := range g.asking {
		switch {
		case call == 0 && c.slots == 1:
		case call > 0 && c.order == call:
			c.offer = uint16(slot + 1)
		default:
			continue
		}
		c.wake()
		return true
	}
	return false
}

func (c *caller) wake() {
	select {
	case c.wakeUps <- struct{}{}:
	default:
	}
}

// drainWakeUps discards the wake-ups that have come so far to a call.
func (g *gates) drainWakeUps(callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range callers {
		if !c.heads {
			continue
		}
		c.openWakeUps()
		select {
		case <-c.wakeUps:
		default:
		}
	}
}

func (c *caller) openWakeUps() {
	if c.wakeUps == nil {
		c.wakeUps = make(chan struct{}, 1)
	}
}

// wakeAll wakes all that ask, because each of them may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		for _, c := range at.asking {
			c.wake()
		}
	}
}

// seenGate is what was at a gate at one moment.
type seenGate struct {
	key     string
	locks   []*Lock   // that are held
	waiting []*caller // who doesn't have the lock yet, in the order of their turns
}

// see returns what is at the gate. The mu of the gates is held.
func (g *gate) see() seenGate {
	return seenGate{key: g.key, locks: slices.Clone(g.locks), waiting: slices.AppendSeq(slices.Clone(g.asking), g.line.all())}
}

// gatesAtOnce is how many gates are seen while no call can come or go.
const gatesAtOnce = 64

// seen yields what is at all gates, some at a time, which stay valid until the next. Gates that come or go meanwhile may be missing.
func (g *gates) seen() iter.Seq[[]seenGate] {
	return func(yield func([]seenGate) bool) {
		some := make([]seenGate, 0, gatesAtOnce)
		g.mu.Lock()
		for _, at := range g.byKey { // which may change between two steps
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

// withoutEnded leaves out the locks that have ended, after mu was unlocked.
func withoutEnded(some []seenGate) []seenGate {
	for i := range some {
		some[i].dropEnded()
	}
	return some
}

func (s *seenGate) dropEnded() {
	s.locks = slices.DeleteFunc(s.locks, func(k *Lock) bool { return k.own.Err() != nil })
}

// appendStatuses appends what is shown of the gate: one for each lock that is held, or else one.
func (s *seenGate) appendStatuses(all []KeyStatus, key string) []KeyStatus {
	first := len(all)
	for _, k := range s.locks {
		all = append(all, KeyStatus{Key: key, Label: k.caller.label, Request: k.caller.request, Held: true, Since: k.since(), Until: k.ownUntil(), Fence: k.Fence()})
		if k.attempt.Slots > 1 {
			all[len(all)-1].Slot, all[len(all)-1].Slots = int(k.attempt.Slot), int(k.attempt.Slots)
		}
	}
	line := s.waiting
	switch {
	case len(s.locks) > 1:
		slices.SortFunc(all[first:], func(a, b KeyStatus) int { return cmp.Compare(a.Slot, b.Slot) })
	case len(s.locks) == 0 && len(line) == 0:
		return all
	case len(s.locks) == 0:
		all = append(all, KeyStatus{Key: key, Label: line[0].label, Request: line[0].request, Since: line[0].began})
		line = line[1:]
	}
	all[first].Waiting = len(s.waiting)
	for _, c := range line {
		all[first].Line = append(all[first].Line, Call{Label: c.label, Since: c.began, Request: c.request})
	}
	return all
}

// longWaitPause is the time between two lines of the log about calls that wait long.
const longWaitPause = time.Minute

// heldSince returns a lock for which a caller in line waits, if all locks of this process on the key were held before it came; else nil.
// due says whether it is time to log that.
func (g *gates) heldSince(c *caller) (holder *Lock, due bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	locks := c.gate.locks
	if len(locks) == 0 || slices.ContainsFunc(locks, func(k *Lock) bool { return k.since().After(c.began) }) {
		return nil, false
	}
	now := time.Now()
	if due = g.told.IsZero() || now.Sub(g.told) >= longWaitPause; due {
		g.told = now
	}
	return locks[0], due
}

// held returns the error for a caller that finds all slots taken, or wanted, within this process.
func (g *gate) held() *HeldError {
	held, most := &HeldError{}, 0
	for _, c := range g.asking {
		most = max(most, c.slots)
		if failed, ok := c.failure.(*HeldError); ok { // it has met a lock of another process
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

// nextFor has the oldest caller in line ask for the slot of a lock that ends, in its place, if nobody of this process asks for the same: the
// slot is handed on to it, unless others were first. It returns nil where a command of its own must release the lock: for its result, or for the ticket that its call may
// have at masters.
func (g *gates) nextFor(k *Lock) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, slots := k.gate, k.attempt.Slots
	if len(at.asking) > 0 && slots == 1 || at.line.len() == 0 || k.result != nil || slots > 1 && k.attempt.MayHaveTicket() {
		return nil
	}
	if first := at.line.first(); first.several || first.recall || (first.slots > 1) != (slots > 1) || first.slots <= k.Slot() {
		return nil
	}
	at.leave(k)
	next := g.advance(at)
	if next != nil {
		next.slot, next.trying = k.attempt.Slot, true
	}
	g.settle(at)
	return next
}

// slotsOf returns how many slots a key has, if this process holds one of several; else 0.
func (g *gates) slotsOf(key string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.byKey[key]; at != nil {
		for _, k := range at.locks {
			if k.attempt.Slots > 1 {
				n = max(n, int(k.attempt.Slots))
			}
		}
	}
	return n
}

// afterSlot takes a lock from its gate, and returns the caller that is to ask next.
func (g *gates) afterSlot(k *Lock) (next *caller) {
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

// chooseSlot returns the slot for which a call asks: the one that it was offered, or the next that this process neither has nor is asking
// for.
func (g *gates) chooseSlot(c *caller, first int) (chosen uint16, offered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, here := c.slots, c.gate
	slot := int(c.offer) - 1
	if offered = 0 <= slot && slot < n && !here.has(slot); !offered {
		for slot = first % n; here.has(slot) || here.asksFor(slot); slot = (slot + 1) % n {
			if (slot+1)%n == first%n {
				break
			}
		}
	}
	c.slot, c.trying, c.offer = uint16(slot), true, 0
	return c.slot, offered
}

func (g *gate) has(slot int) bool {
	return slices.ContainsFunc(g.locks, func(k *Lock) bool { return int(k.attempt.Slot) == slot })
}

func (g *gate) asksFor(slot int) bool {
	return slices.ContainsFunc(g.asking, func(c *caller) bool { return c.trying && int(c.slot) == slot })
}

// offered has the next attempt of a call ask for the slot that it is offered, and reports false if this process has that: then the leader
// has lost it.
func (g *gates) offered(c *caller, offer uint16) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.gate.has(int(offer) - 1) {
		return false
	}
	c.offer = offer
	return true
}

// keys returns the status of all keys that name accepts. It gets the key as it is on the masters.
func (g *gates) keys(name func(full string) (key string, accepted bool)) []KeyStatus {
	var parts [][]KeyStatus // a slice that grows would be copied again and again
	for some := range g.seen() {
		part := make([]KeyStatus, 0, len(some))
		for i := range some {
			if key, accepted := name(some[i].key); accepted {
				part = some[i].appendStatuses(part, key)
			}
		}
		parts = append(parts, part)
	}
	return slices.Concat(parts...)
}

// count returns how many keys are locked here and since when the oldest, and how many calls don't have their lock yet.
func (g *gates) count() (held, waiting int, oldest time.Time) {
	several := make(map[*caller]bool) // the calls for several keys, by their first caller: they may stand at several gates
	wait := func(c *caller) {
		if c.several {
			several[c.call[0]] = true
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
			for _, c := range at.waiting {
				wait(c)
			}
		}
	}
	return held, waiting + len(several), oldest
}

// holding returns the lock on a key if this process has it with this token, or nil.
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
