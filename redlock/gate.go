package redlock

import (
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
)

// gates has a gate for each key that this process has locked or wants to lock.
type gates struct {
	mu    sync.Mutex
	byKey map[string]*gate
	came  uint64 // how many calls have come so far
}

// gate is where the calls for one key queue up within this process, in the order in which they came. Of a key with n slots so many calls
// as may hold it have a slot, or ask the masters for one; all others stand in line. A call for several keys stands in line at all its
// gates, and asks at all of them at once. While others keep it from that, those behind it go first: so a gate at which nobody asks, and
// nobody has a slot, has only such calls in its line. A gate exists as long as anybody is at it.
type gate struct {
	key    string
	locks  []*Lock           // that are held
	asking []*caller         // in the order in which they came; so many places has this process in the masters' line
	line   []*caller         // behind those
	tries  []chan *DoneError // get the result that an attempt meets, or are closed at its end; try-locks wait for that

	roomToHold [1]*Lock // for locks and asking: mostly enough; saves two allocations
	roomToAsk  [1]*caller
}

// maxAsking bounds how many calls of one process ask for slots of one key at a time.
const maxAsking = 16

// caller is a call of Lock or TryLock at the gate of one key. A LockAll call has one for each key.
type caller struct {
	lockOptions
	key string // as it is on the masters
	try bool   // a TryLock: it doesn't wait
	// polls is set once the call has waited for its subscriptions: it polls the masters that can't wake it.
	polls bool
	// several says that the call is for more than one key, so that this lock alone is of no use to it.
	several bool
	tried   bool                // it has made an attempt
	call    []*caller           // for several keys, the callers of the call
	order   uint64              // of the call among all of this process; 0 before it enters
	gate    *gate               // where it is, or was last
	done    *DoneError          // what the head before it has met, if it wants that; set before its turn
	ownGate gate                // room for the gate, if this caller is the first at it; saves an allocation
	began   time.Time           // when the call began, on our clock
	ticket  int64               // its place in the masters' queues, from its first attempt on; 0 if not known yet
	ahead   int                 // callers before it when it entered
	turn    chan *attempt       // it is the head now; with an attempt if the lock before was handed on, else nil; one for a call
	tickets []link.TicketState  // the masters that may have its ticket; each stream guards its own
	room    [5]link.TicketState // for tickets: enough for most; saves an allocation

	// The mu of the gates guards these.
	heads   bool          // it asks for a slot at its gate
	slot    uint16        // asked for last
	trying  bool          // an attempt for it is under way
	hinted  uint16        // 1 + the slot that a wake-up, or masters, have named as free; 0 for none
	hints   int           // how often masters have
	failure error         // of the last attempt
	wakeUps chan struct{} // signals that the key may be free; nil while nobody needs that
}

// enter has a call ask at the gates of all its keys at once, or at no further one: then others are in its way for
// the key of the caller that it returns, and if stand is set, the call stands in line. A try-lock never does: it gets the error
// with which their last attempt has failed or, while the first is still under way, a channel that gets the result which
// that meets, or is closed when it should enter again.
func (g *gates) enter(callers []*caller, stand bool) (blocked *caller, later <-chan *DoneError, err error) {
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
		later, err = blocked.gate.refuseTry()
	case fresh && len(blocked.gate.line) >= int(blocked.maxWaiters):
		held := blocked.gate.held()
		held.Err = ErrTooManyWaiters
		err = held
	default:
		turn, ahead := make(chan *attempt, 1), 0
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
	for _, older := range g.line {
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
func (g *gate) fullFor(c *caller) bool {
	busy := g.busy()
	if busy == 0 {
		return false
	}
	return busy >= int(c.slots) || len(g.asking) >= maxAsking ||
		slices.ContainsFunc(g.asking, func(asks *caller) bool { return busy >= int(asks.slots) })
}

// busy returns how many slots this process has, or asks for.
func (g *gate) busy() int { return len(g.locks) + len(g.asking) }

// seat has a caller ask for a slot.
func (g *gates) seat(c *caller) {
	if c.heads {
		return
	}
	at := g.at(c)
	at.drop(c)
	c.gate, c.heads = at, true
	if at.asking == nil {
		at.asking = at.roomToAsk[:0]
	}
	if at.asking = append(at.asking, c); c.polls || c.slots > 1 { // it can be woken from now on
		c.openWakeUps()
	}
}

// join puts a caller into the line of its gate, before those that came after it, and returns how many are ahead.
func (g *gates) join(c *caller) (ahead int) {
	at := g.at(c)
	c.gate = at
	place := len(at.line)
	for place > 0 && at.line[place-1].order > c.order {
		place--
	}
	at.line = slices.Insert(at.line, place, c)
	return place + at.busy()
}

// drop takes a caller out of the line, if it is there.
func (g *gate) drop(c *caller) (dropped bool) {
	switch i := slices.Index(g.line, c); i {
	case -1:
		return false
	case 0:
		g.line[0] = nil
		g.line = g.line[1:]
	default:
		g.line = slices.Delete(g.line, i, i+1)
	}
	return true
}

// advance has the oldest caller in line ask that can, and returns it, or nil if there is none. It waits for a send to its turn.
func (g *gates) advance(at *gate) *caller {
	for _, c := range at.line {
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
	c.heads = false
	g.asking = slices.DeleteFunc(g.asking, func(other *caller) bool { return other == c })
}

// settle has those ask that can, and removes a gate at which nobody is.
func (g *gates) settle(at *gate) {
	for next := g.advance(at); next != nil; next = g.advance(at) {
		next.turn <- nil
	}
	at.answerTries()
	if at.busy() == 0 && len(at.line) == 0 && g.byKey[at.key] == at {
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
		if c.gate != nil && c.gate.drop(c) {
			g.settle(c.gate)
		}
	}
	return true
}
