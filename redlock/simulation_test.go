package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The properties that hold in every world.
const (
	exclusion = "no two hold a key at once"
	fencing   = "fences grow in the order of grants"
	noRefill  = "no lost lock is taken again for its old holder"
	allEnds   = "every lock ends, and leaves no key"
)

// process is a Locker and its clients, on links of its own.
type process struct {
	world   *world
	index   int
	links   []*link
	clients int
	pauses  windows
	dies    time.Duration
	skew    time.Duration // of its clock, as its proposals for fences show it
	locker  *Locker
}

func (p *process) dead() bool { return p.world.now() >= p.dies }

// nap sleeps for a time, and on while the process is paused.
func (p *process) nap(d time.Duration) {
	time.Sleep(p.pauses.end(p.world.now()+d) - p.world.now())
}

// holder is a lock as its application knows it.
type holder struct {
	*Lock
	process  *process
	key      string
	order    int // of the grants, over all keys
	granted  time.Duration
	unlocked time.Duration // 0 if never
	promised time.Duration // the end of the longest validity that a renewal was sent in
}

type held = holder

// until is the end of the validity so far.
func (h *holder) until() time.Duration { return h.Until().Sub(h.process.world.start) }

// end is when the lock was not certain any more.
func (h *holder) end() time.Duration {
	if h.unlocked > 0 {
		return min(h.unlocked, h.until())
	}
	return h.until()
}

func (w *world) granted(p *process, key string, lock *Lock) *holder {
	w.event("process %d holds %s by %s with fence %d until %v", p.index, key, short(lock.attempt.calls[0].Token), lock.Fence(), lock.Until().Sub(w.start))
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &holder{Lock: lock, process: p, key: key, order: len(w.held), granted: w.now()}
	w.held = append(w.held, h)
	w.tokens[lock.attempt.calls[0].Token] = h
	return h
}

// violated notes that a property doesn't hold.
func (w *world) violated(property, form string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = append(w.broken, property+": "+fmt.Sprintf(form, args...))
	w.events = append(w.events, event{w.now(), "VIOLATION " + form, args})
}

// renewing notes the validity in which an extend is sent.
func (w *world) renewing(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.tokens[token]; h != nil {
		h.promised = max(h.promised, h.until())
	}
}

// refilled checks an extend that took the key anew. A server's clock that jumped back is late to see
// that the time for it is over.
func (w *world) refilled(s *simServer, token string) {
	w.mu.Lock()
	h := w.tokens[token]
	w.mu.Unlock()
	if h == nil {
		return
	}
	late := w.now() - max(h.promised, h.until())
	if late > max(-s.jump, 0) {
		w.violated(noRefill, "%s on server %d, %v after the end of its validity", short(token), s.index, late)
	}
}

// write is what a lock is for: the store remembers the largest fence and refuses smaller ones.
func (w *world) write(h *holder) {
	w.mu.Lock()
	last := w.stored[h.key]
	if last == nil || h.Fence() >= last.Fence() {
		w.stored[h.key] = h
	}
	w.mu.Unlock()
	if last != nil && h.Fence() >= last.Fence() && h.order < last.order {
		w.violated(fencing, "the store took a write with fence %d of grant %d after that of grant %d with %d", h.Fence(), h.order, last.order, last.Fence())
	}
}

// client takes and frees locks for as long as there are faults.
func (w *world) client(p *process, r *rand.Rand) {
	for w.now() < w.faults.to && !p.dead() {
		p.nap(upTo(r, 60*time.Millisecond))
		key := strconv.Itoa(r.IntN(w.keys))
		lock, err := p.take(key, between(r, 5*time.Millisecond, 2*w.ttl), chance(r, 30), WithTTL(between(r, w.ttl/4, w.ttl)))
		if err != nil {
			continue
		}
		h := w.granted(p, key, lock)
		work := 30 * time.Millisecond
		switch r.IntN(20) {
		case 0, 1:
			work = 3 * w.ttl
		case 2, 3, 4:
			work = w.ttl / 2
		}
		p.nap(upTo(r, work))
		if lock.Err() == nil {
			p.nap(upTo(r, 10*time.Millisecond)) // the lock may be lost meanwhile
			w.write(h)
		}
		if !p.dead() {
			w.unlock(h)
			continue
		}
		select {
		case <-lock.Context().Done():
		case <-time.After(time.Minute):
			w.violated(allEnds, "grant %d, of a dead process, after a minute", h.order)
		}
	}
}

func (p *process) take(key string, wait time.Duration, try bool, opts ...LockOption) (*Lock, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // not context.WithTimeout: its timer crashes the race detector in a bubble (Go 1.26)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
			cancel()
		}
	}()
	if try {
		return p.locker.TryLock(ctx, key, opts...)
	}
	return p.locker.Lock(ctx, key, opts...)
}

func (w *world) unlock(h *holder) {
	h.unlocked = w.now()
	err := h.Unlock()
	w.event("process %d unlocks grant %d: %v", h.process.index, h.order, err)
	if h.Context().Err() == nil {
		w.violated(allEnds, "grant %d goes on after Unlock", h.order)
	}
}

// each runs a function for each process, or each client, and waits for all.
func (w *world) each(clients bool, f func(p *process, r *rand.Rand)) {
	var all sync.WaitGroup
	for i, p := range w.processes {
		for c := range p.clients {
			if c == 0 || clients {
				r := rand.New(rand.NewPCG(w.seed, uint64(1000+10*i+c)))
				all.Go(func() { f(p, r) })
			}
		}
	}
	all.Wait()
}

// run lives a world from its start to its end.
func (w *world) run() {
	for _, p := range w.processes {
		var masters []Master
		for _, l := range p.links {
			masters = append(masters, l)
		}
		p.locker, _ = New(masters, WithTTL(w.ttl), WithMaxTTL(w.ttl), WithTimeout(w.timeout), WithRestartGuard(w.guard))
	}
	w.each(false, func(p *process, r *rand.Rand) { // each sees each server's clock before it can jump
		for i := 0; p.unacquainted() && i < 20; i++ {
			if lock, err := p.take("hello", w.faults.from, true); err == nil {
				_ = lock.Unlock()
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	time.Sleep(w.faults.from - w.now())
	w.each(true, w.client)

	time.Sleep(w.late + w.guard + 4*w.ttl) // what is under way comes in, and all servers vote
	w.expectNoKeys("after the end of all leases")
	w.each(false, func(p *process, r *rand.Rand) { // who is left has to get each lock, and leaves none
		for key := range w.keys {
			if !p.dead() {
				w.settle(p, r, strconv.Itoa(key))
			}
		}
	})
	w.calm.Store(true)
	time.Sleep(2*owedGap + 8*w.timeout)
	w.expectNoKeys("after all calls")
	w.each(false, func(p *process, _ *rand.Rand) { _ = p.locker.Close() })
	w.judge()
}

// settle takes a lock when there are no more faults but lost messages, after calls that give up.
func (w *world) settle(p *process, r *rand.Rand, key string) {
	lock, err := p.take(key, 10*w.ttl, false)
	if err != nil {
		w.violated(allEnds, "process %d can't lock %s: %v", p.index, key, err)
		return
	}
	w.unlock(w.granted(p, key, lock))
	for range 3 {
		if lock, err := p.take(key, upTo(r, 30*time.Millisecond), false); err == nil {
			w.unlock(w.granted(p, key, lock))
		}
	}
}

// unacquainted says whether the process has not heard of each server's clock.
func (p *process) unacquainted() bool {
	for _, s := range p.locker.streams {
		if !s.clock.known.Load() {
			return true
		}
	}
	return false
}

func (w *world) expectNoKeys(when string) {
	for _, s := range w.servers {
		for _, key := range s.keys() {
			w.violated(allEnds, "left %s: %s", when, key)
		}
	}
}

// judge looks at all grants of each key in their order.
func (w *world) judge() {
	last := make(map[string]*holder) // the one with the latest end
	top := make(map[string]*holder)  // the one with the largest fence
	for _, h := range w.held {
		if errors.Is(context.Cause(h.Context()), ErrLost) {
			w.lost++
		}
		if other := last[h.key]; other != nil && h.granted < other.end() {
			w.violated(exclusion, "grant %d (process %d) at %v, while grant %d (process %d) holds the key until %v", h.order, h.process.index, h.granted, other.order, other.process.index, other.end())
		}
		if other := top[h.key]; other != nil && h.Fence() <= other.Fence() {
			w.violated(fencing, "grant %d has %d, after grant %d with %d", h.order, h.Fence(), other.order, other.Fence())
		}
		if last[h.key] == nil || h.end() > last[h.key].end() {
			last[h.key] = h
		}
		if top[h.key] == nil || h.Fence() > top[h.key].Fence() {
			top[h.key] = h
		}
	}
}

// simulate runs a world.
func simulate(t *testing.T, seed uint64, m mutant) (w *world) {
	synctest.Test(t, func(*testing.T) {
		w = newWorld(seed, m)
		w.run()
	})
	return w
}

// seeds gives n seeds to as many goroutines as there are processors, until one says stop.
func seeds(t *testing.T, first, n uint64, each func(t *testing.T, seed uint64) (more bool)) {
	var next atomic.Uint64
	var stop atomic.Bool
	t.Run("seeds", func(t *testing.T) {
		for i := range 4 {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				for seed := next.Add(1) - 1; seed < n && !stop.Load(); seed = next.Add(1) - 1 {
					if !each(t, first+seed) {
						stop.Store(true)
					}
				}
			})
		}
	})
}

// TestSimulation: whatever goes wrong, the properties hold. SEEDS is the number of worlds, SEED the
// first one.
func TestSimulation(t *testing.T) {
	number := func(name string, otherwise uint64) uint64 {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return n
		}
		return otherwise
	}
	count := uint64(2000)
	if testing.Short() {
		count = 200
	}
	var grants, lost atomic.Int64
	seeds(t, number("SEED", 1), number("SEEDS", count), func(t *testing.T, seed uint64) bool {
		w := simulate(t, seed, mutant{})
		grants.Add(int64(len(w.held)))
		lost.Add(w.lost)
		if len(w.broken) > 0 {
			t.Errorf("seed %d: %v\n%s", seed, w.broken, w.trace())
		}
		return len(w.broken) == 0
	})
	t.Logf("%d locks, %d of them lost", grants.Load(), lost.Load())
}
