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

// gate is where the calls for one key queue up within this process, in the order in which they came. Only its head deals with
// the masters: a call that wants the lock, and after it the lock itself until that ends. A call for several keys stands in line at
// all its gates, and becomes the head of all of them at once. While others keep it from that, those behind it go first: so a gate
// without a head has only such calls in its line. A gate exists as long as anybody is at it.
type gate struct {
	key     string
	head    *caller           // the call that has the lock, or is the next to get it; nil while nobody can be
	line    []*caller         // behind the head
	wakeUps chan struct{}     // signals the head that the key may be free; nil while nobody needs that
	lock    *Lock             // the last one on the key
	slots   *slots            // where the key may have several holders: they, and who asks for a slot, aren't the head; else nil
	failure error             // of the head's last attempt; nil if that has won, or there was none
	tries   []chan *DoneError // get the result that the attempt of the head meets, or are closed at its end; try-locks wait for that
}

// caller is a call of Lock or TryLock at the gate of one key. A LockAll call has one for each key.
type caller struct {
	lockOptions
	key string // as it is on the masters
	try bool   // a TryLock: it doesn't wait
	// polls is set once the call has waited for its subscriptions: it polls the masters that can't wake it.
	polls bool
	// several says that the call is for more than one key, so that this lock alone is of no use to it.
	several bool
	heads   bool                // it is the head at its gate, or asks for a slot there; the mu of the gates guards this
	tried   bool                // it has made an attempt
	asks    *asks               // where the key may have several holders; else nil
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
}

// enter makes a call the head of the gates of all its keys at once, or of no further one: then another call is the head for
// the key of the caller that it returns, and if stand is set, the call stands in line. A try-lock never does: it gets the error
// with which that head's last attempt has failed or, while the first is still under way, a channel that gets the result which
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

// seat makes a caller the head of its gate.
func (g *gates) seat(c *caller) {
	if c.heads {
		return
	}
	at := g.at(c)
	at.drop(c)
	c.gate, c.heads = at, true
	if c.asks != nil {
		at.asked(c)
		return
	}
	at.head = c
	if c.polls { // it may have come from other gates, and can be woken from now on
		at.openWakeUps()
	}
}

// join puts a caller into the line of its gate, before those that came after it, and returns how many are ahead.
func (g *gates) join(c *caller) (ahead int) {
	at := g.at(c)
	c.gate = at
	at.openWakeUps()
	place := len(at.line)
	for place > 0 && at.line[place-1].order > c.order {
		place--
	}
	at.line = slices.Insert(at.line, place, c)
	if at.head != nil {
		place++
	}
	return place
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

// next makes the oldest caller in line that can be the head now the head, in place of the present one, and returns it, or nil if there
// is none. The new head waits for a send to its turn.
func (g *gates) next(at *gate) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.advance(at)
	if next != nil && next.asks != nil {
		g.settle(at)
	}
	return next
}

func (g *gates) advance(at *gate) *caller {
	for _, c := range at.line {
		if at.slots.fullFor(c) {
			return nil // the oldest is first, however many it would let in
		}
		if !g.blocked(c, at) {
			if at.head != nil {
				g.unseat(at.head)
			}
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

// leave ends the time of locks at their gates: the next callers become the heads, or the gates go if nobody is at them.
func (g *gates) leave(locks ...*Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, k := range locks {
		if k.caller.asks != nil {
			k.gate.slots.leave(k)
		} else {
			g.unseat(k.caller)
		}
	}
	for _, k := range locks {
		g.settle(k.gate)
	}
}

func (g *gates) unseat(c *caller) {
	if c.heads = false; c.asks != nil {
		c.gate.slots.drop(c)
	} else {
		c.gate.head = nil
	}
}

// settle finds a head for a gate that has none, or those that ask for its slots.
func (g *gates) settle(at *gate) {
	for at.head == nil {
		next := g.advance(at)
		if next == nil {
			break
		}
		next.turn <- nil
	}
	if at.head != nil {
		return
	}
	at.answerTries()
	if at.slots.busy() > 0 {
		return
	}
	at.failure, at.slots = nil, nil
	if len(at.line) == 0 && g.byKey[at.key] == at {
		delete(g.byKey, at.key)
	}
}

// keepOnly has a call leave the gates of which it is the head, but for that of one caller, or for none. If it is for several
// keys, what it has met says nothing to others: the key may be free.
func (g *gates) keepOnly(kept *caller, callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var room [1]*gate
	left := room[:0]
	for _, c := range callers {
		if c.heads && c != kept {
			if c.several && c.asks != nil {
				c.asks.failure = nil
			} else if c.several {
				c.gate.failure = nil
			}
			g.unseat(c)
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
