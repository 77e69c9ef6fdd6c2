package redlock

import (
	"slices"
	"sync"
	"time"
)

// gates has the gate of each key that this process locks or wants.
type gates struct {
	mu    sync.Mutex
	byKey map[string]*gate
}

// gate is where the calls for one key wait, in the order in which they came. Only its head deals with
// the masters: the call that wants the lock, and then the lock until it ends. A gate without one is gone.
type gate struct {
	key    string
	line   []*caller     // behind the head
	newest int64         // ticket
	woken  chan struct{} // the masters say that the key may be free; nil if nobody listens for it
	shared bool          // woken is also that of other gates, of which the same call is the head
	lock   *Lock         // the last that was had
	failed error         // of the head's last attempt; nil after one that won
	asking []chan struct{}
}

// caller is a call of Lock or TryLock at its gate.
type caller struct {
	lockOptions
	key string // the full key
	try bool   // doesn't wait
	// several says that the call is for more keys than this one: it has no use for this lock alone.
	several bool
	gate    *gate
	first   gate          // which it is where there was none
	ticket  int64         // when it came, in microseconds on the masters' clocks
	came    time.Time     // when it came, on ours
	ahead   int           // calls that were there before
	turn    chan *attempt // it is the head now; with the attempt that the lock before it has begun, or nil
}

// enter gives a call its place: the head's if the gate is new. One that doesn't wait gets no other: it
// is told why the head hasn't got the lock either, or, before that is known, what to wait for before it
// enters again.
func (g *gates) enter(c *caller, clock int64) (head bool, later <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.byKey[c.key]
	if head = at == nil; head {
		at = &c.first
		at.key = c.key
		g.byKey[c.key] = at
	}
	c.gate = at
	c.ticket = max(clock, at.newest+1)
	if c.several { // the same for all keys, so that who is first for one is for all
		c.ticket = clock
	}
	switch {
	case head:
		at.newest = c.ticket
		if c.several { // it may be long until it tries
			at.failed = at.held()
		}
	case c.try:
		later, err = at.ask()
	case len(at.line) >= c.maxWaiters:
		held := at.held()
		held.Err = ErrTooManyWaiters
		err = held
	default:
		at.newest = max(at.newest, c.ticket)
		c.ahead = len(at.line) + 1
		c.turn = make(chan *attempt, 1)
		at.listen()
		at.line = append(at.line, c)
	}
	return head, later, err
}

// held is the error of one who finds the key locked or wanted in this process.
func (g *gate) held() *HeldError {
	held := &HeldError{}
	if failed, ok := g.failed.(*HeldError); ok { // as the head was told of a lock elsewhere
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

// next makes the oldest call in line the head, and gives it; or nil if there is none. Send it its turn.
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
		g.shared, g.woken = false, nil
		g.listen()
	}
	c := g.line[0]
	g.line[0] = nil
	g.line = g.line[1:]
	return c
}

// leave ends the head's time: the next one has its turn, or the gate is gone.
func (g *gates) leave(at *gate) {
	g.mu.Lock()
	next := at.next()
	if next == nil {
		delete(g.byKey, at.key)
		at.tell()
	}
	g.mu.Unlock()
	if next != nil {
		next.turn <- nil
	}
}

// giveUp takes a call out of the line. It is false if the call has become the head.
func (g *gates) giveUp(c *caller) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(c.gate.line, c)
	if i >= 0 {
		c.gate.line = slices.Delete(c.gate.line, i, i+1)
	}
	return i >= 0
}

// outcome notes what became of an attempt of the head's, for those who don't wait.
func (g *gates) outcome(at *gate, lock *Lock, failed error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at.failed = failed
	if lock != nil {
		at.lock = lock
	}
	at.tell()
}

func (g *gate) tell() {
	for _, asking := range g.asking {
		close(asking)
	}
	g.asking = nil
}

func (g *gate) ask() (later <-chan struct{}, err error) {
	switch {
	case g.failed != nil:
		return nil, g.failed
	case g.lock != nil:
		return nil, g.held()
	}
	asking := make(chan struct{})
	g.asking = append(g.asking, asking)
	return asking, nil
}

// wake tells the head of a key's gate that the key may be free. Where nobody is, it runs otherwise,
// before anybody can come.
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
	case g.woken <- struct{}{}:
	default:
	}
}

// calm forgets what was said to a head, and has it listen from now on, at all its gates together.
func (g *gates) calm(callers []*caller) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := callers[0].gate
	first.listen()
	for _, c := range callers[1:] {
		first.shared = true
		c.gate.woken, c.gate.shared = first.woken, true
	}
	select {
	case <-first.woken:
	default:
	}
}

func (g *gate) listen() {
	if g.woken == nil {
		g.woken = make(chan struct{}, 1)
	}
}

// wakeAll tells all heads that they may have missed a wake-up.
func (g *gates) wakeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range g.byKey {
		at.wake()
	}
}
