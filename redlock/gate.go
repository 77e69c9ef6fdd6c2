package redlock

import (
	"slices"
	"sync"
	"time"
)

// gates has a gate for each key that this process has locked or wants to lock.
type gates struct {
	mu    sync.Mutex
	byKey map[string]*gate
}

// gate is where the calls for one key queue up within this process, in the order in which they came. Only
// its head deals with the masters: a call that wants the lock, and after it the lock itself until that
// ends. A gate exists as long as it has a head.
type gate struct {
	key     string
	head    *caller           // the call that has the lock, or is the next to get it
	line    []*caller         // behind the head
	newest  int64             // the largest ticket of its heads so far
	wakeUps chan struct{}     // signals the head that the key may be free; nil while nobody needs that
	shared  bool              // wakeUps belongs to several gates, at which the same LockAll call is the head
	lock    *Lock             // the last one on the key
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
	gate    *gate
	ownGate gate           // room for the gate, if this caller is the first at it; saves an allocation
	began   time.Time      // when the call began, on our clock
	arrival int64          // the same on the masters' clocks, in microseconds; 0 if they weren't known
	ticket  int64          // its place in the masters' queues, from when it is the head; 0 if not known yet
	ahead   int            // callers before it when it entered
	turn    chan *attempt  // it is the head now; with an attempt if the lock before was handed on, else nil
	tickets []ticketState  // the masters that may have its ticket; each stream guards its own
	room    [5]ticketState // for tickets: enough for most; saves an allocation
}

func (c *caller) ticketsOn(masters int) []ticketState {
	if c.tickets == nil {
		c.tickets = append(c.room[:0], make([]ticketState, masters)...)
	}
	return c.tickets
}

// enter queues the caller at its key's gate. head reports whether it is the first there. A try-lock never
// queues behind a head: it gets the error with which the head's last attempt has failed or, while the first
// is still under way, a channel that gets the result which that meets, or is closed when it should enter again.
func (g *gates) enter(c *caller) (head bool, later <-chan *DoneError, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.byKey[c.key]
	if head = at == nil; head {
		at = &c.ownGate
		at.key = c.key
		g.byKey[c.key] = at
	}
	c.gate = at
	switch {
	case head:
		at.head = c
		c.number(c.arrival)
		if c.several { // it may be long before the call is the head of its other gates and makes an attempt
			at.failure = at.held()
		}
	case c.try:
		later, err = at.refuseTry()
	case len(at.line) >= c.maxWaiters:
		held := at.held()
		held.Err = ErrTooManyWaiters
		err = held
	default:
		c.ahead = len(at.line) + 1
		c.turn = make(chan *attempt, 1)
		at.openWakeUps()
		at.line = append(at.line, c)
	}
	return head, later, err
}

// held returns the error for a caller that finds the key locked or wanted within this process.
func (g *gate) held() *HeldError {
	held := &HeldError{}
	if failed, ok := g.failure.(*HeldError); ok { // the head has met a lock of another process
		held.RetryAfter = failed.RetryAfter
	}
	if g.lock != nil {
		held.RetryAfter = max(held.RetryAfter, time.Until(g.lock.Until()))
	}
	return held
}

func (g *gates) held(at *gate) *HeldError {
	g.mu.Lock()
	defer g.mu.Unlock()
	return at.held()
}

// next makes the oldest caller in line the head and returns it, or nil if there is none. The new head waits
// for a send to its turn.
func (g *gates) next(at *gate) *caller {
	g.mu.Lock()
	defer g.mu.Unlock()
	return at.next()
}

func (g *gate) next() *caller {
	if len(g.line) == 0 {
		return nil
	}
	if g.shared {
		g.shared, g.wakeUps = false, nil
		g.openWakeUps()
	}
	c := g.line[0]
	g.line[0] = nil
	g.line = g.line[1:]
	g.head = c
	c.number(c.arrival)
	return c
}

// leave ends the head's time: the next caller becomes the head, or the gate goes.
func (g *gates) leave(at *gate) {
	g.mu.Lock()
	next := at.next()
	if next == nil {
		delete(g.byKey, at.key)
		at.answerTries()
	}
	g.mu.Unlock()
	if next != nil {
		next.turn <- nil
	}
}

// giveUp takes a caller out of the line. It reports false if the caller has become the head meanwhile.
func (g *gates) giveUp(c *caller) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(c.gate.line, c)
	if i >= 0 {
		c.gate.line = slices.Delete(c.gate.line, i, i+1)
	}
	return i >= 0
}

// noteOutcome records how an attempt of the head has ended, and answers the try-locks that wait for that.
func (g *gates) noteOutcome(at *gate, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.failure = failed
	if lock != nil {
		at.lock = lock
	}
	at.answerTries()
}

// met passes the result that the head has met on to the try-locks that wait for its attempt: it was remembered
// while they waited.
func (g *gates) met(at *gate, done *DoneError) {
	g.mu.Lock()
	tries := at.tries
	at.tries = nil
	g.mu.Unlock()
	if len(tries) == 0 {
		return
	}
	shared := done.clone()
	for _, try := range tries {
		try <- shared
	}
}

func (g *gate) answerTries() {
	for _, try := range g.tries {
		close(try)
	}
	g.tries = nil
}

func (g *gate) refuseTry() (later <-chan *DoneError, err error) {
	switch {
	case g.failure != nil:
		return nil, g.failure
	case g.lock != nil:
		return nil, g.held()
	}
	try := make(chan *DoneError, 1)
	g.tries = append(g.tries, try)
	return try, nil
}

// wake passes a wake-up on to the head of a key's gate. If nobody here wants the key any more, it calls
// otherwise, with mu held so that no caller can enter meanwhile.
func (g *gates) wake(key string, otherwise func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := g.byKey[key]; at != nil {
		at.wake()
	} else {
		otherwise()
	}
}

func (g *gate) wake() {
	select {
	case g.wakeUps <- struct{}{}:
	default:
	}
}

// drainWakeUps discards the wake-ups that have come so far, and has all gates of a call share one channel for those
// that come from now on.
func (g *gates) drainWakeUps(callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := callers[0].gate
	first.openWakeUps()
	for _, c := range callers[1:] {
		first.shared = true
		c.gate.wakeUps, c.gate.shared = first.wakeUps, true
	}
	select {
	case <-first.wakeUps:
	default:
	}
}

func (g *gate) openWakeUps() {
	if g.wakeUps == nil {
		g.wakeUps = make(chan struct{}, 1)
	}
}

// wakeAll wakes all heads, because each of them may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		at.wake()
	}
}
