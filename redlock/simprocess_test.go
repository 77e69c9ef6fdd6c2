package redlock

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// process is a Locker and its clients, on routes of its own.
type process struct {
	world    *world
	index    int
	routes   []*route
	clients  int
	slots    int // how many may hold a key at once, in its view; 0 for one
	pauses   windows
	dies     time.Duration
	closes   time.Duration
	halfOpen bool          // the servers don't notice that it has died
	first    bool          // it has the masters that were there before others with other masters
	born     time.Duration // when it starts; 0 in most worlds
	started  chan struct{} // closed when it has a Locker
	blocks   block         // its log, its Observer or a connection, from then on
	skew     time.Duration // of its clock, as its proposals for fences show it
	locker   *Locker
	named    atomic.Uint64 // the fence of the last release by force
	memory   sync.Map      // what a mutant remembers
	spelt    atomic.Uint64 // how many keys it has spelled

	solo    time.Duration         // a caller that is alone waits for its replies itself for so long, from one master after the other
	locks   bool                  // a server was told last that it may lock; the world's mu guards this
	reached map[int]time.Duration // when it told last that it reaches so many masters; the world's mu guards this
	stopped time.Duration         // when it has told last that it doesn't lock; 0 for never
	told    map[*simServer]heard  // by the servers that were told so
}

// start makes the process's Locker at its time.
func (p *process) start() {
	time.Sleep(p.born - p.world.now())
	w := p.world
	var masters []Master
	for _, l := range p.routes {
		masters = append(masters, Master{l})
	}
	opts := []Option{WithTTL(w.ttl), WithMaxTTL(w.ttl), WithTimeout(w.timeout), WithRestartGuard(w.guard), WithMaxSkew(0),
		WithObserver(p.observer()),
		option(func(o *options) { o.fastFrom, o.solo = 0, p.solo })} // where leases are too short to be granted as Fast, all is asked twice
	p.locker, _ = New(masters, append(opts, p.blocked()...)...)
	if w.mutant.started != nil {
		w.mutant.started(p)
	}
	for i := 0; p.unacquainted() && i < 20; i++ { // it sees each server's clock before that can jump
		if lock, err := p.take("hello", w.faults.from, true); err == nil {
			_ = lock.Unlock()
		}
		time.Sleep(10 * time.Millisecond)
	}
	close(p.started)
}

// recall gives what a mutant has remembered of a text, or the text.
func (p *process) recall(text string) string {
	if known, ok := p.memory.Load(text); ok {
		return known.(string)
	}
	return text
}

func (p *process) dead() bool { return p.world.now() >= p.dies }

func (p *process) left() bool { return p.dead() || p.world.now() >= p.closes }

// close closes the process at its time. No lock of it goes on then.
func (p *process) close() {
	<-p.started
	time.Sleep(p.closes - p.world.now())
	if p.dead() {
		return
	}
	_ = p.locker.Close()
	p.world.mu.Lock()
	held := p.world.held
	p.world.mu.Unlock()
	for _, h := range held {
		if h.process == p && h.Context().Err() == nil {
			p.world.violated(allEnds, "grant %d goes on when process %d has closed", h.order, p.index)
		}
	}
}

// nap sleeps for a time, and on while the process is paused.
func (p *process) nap(d time.Duration) {
	time.Sleep(p.pauses.end(p.world.now()+d) - p.world.now())
}

func (p *process) take(key string, wait time.Duration, try bool, opts ...LockOption) (*Lock, error) {
	return p.takeAll([]string{key}, wait, try, opts...)
}

func (p *process) takeAll(keys []string, wait time.Duration, try bool, opts ...LockOption) (lock *Lock, err error) {
	defer p.returns(keys, wait, try, p.world.now())
	defer func() {
		if err != nil && p.world.isKey(keys[0]) {
			p.world.refused.Add(1)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // not context.WithTimeout: its timer crashes the race detector in a bubble (Go 1.26)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			cancel()
		}
	}()
	if p.slots > 1 && p.world.isKey(keys[0]) {
		opts = append(opts, WithConcurrency(p.slots))
		for _, key := range keys {
			opts = append(opts, WithConcurrency(p.most(key), p.spell(key)))
		}
	}
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = p.spell(keys[i])
	}
	switch {
	case len(keys) > 1 && try:
		return p.locker.LockAll(ctx, keys, append(opts, WithWait(0))...)
	case len(keys) > 1:
		return p.locker.LockAll(ctx, keys, opts...)
	case try:
		return p.locker.TryLock(ctx, keys[0], opts...)
	}
	return p.locker.Lock(ctx, keys[0], opts...)
}

// spell gives a key as the process writes it this time.
func (p *process) spell(key string) string {
	if !p.world.spelled || !p.world.isKey(key) {
		return key
	}
	return []string{"k", "K"}[(p.spelt.Add(1)+uint64(p.index))%2] + key
}

// connected says whether the process has a connection to each server, on which nothing is under way that may still break it.
// It rests longer the more of them broke in a row.
func (p *process) connected() bool {
	for _, s := range p.locker.voters.Streams {
		if !s.At("").Idle() {
			return false
		}
	}
	return true
}

// unacquainted says whether the process has not heard of each server's clock.
func (p *process) unacquainted() bool {
	for _, s := range p.locker.voters.Streams {
		if !knows(s) {
			return true
		}
	}
	return false
}
