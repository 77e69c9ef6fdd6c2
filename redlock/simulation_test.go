package redlock

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
)

// client takes and frees locks for as long as there are faults.
func (w *world) client(p *process, r *rand.Rand) {
	w.mu.Lock()
	w.onces++
	draws := rand.New(rand.NewPCG(w.seed, uint64(500+w.onces))) // for what has come later
	w.mu.Unlock()
	for w.now() < w.faults.to && !p.left() {
		if w.onceWorld() && chance(draws, 30) {
			w.once(p, draws)
		}
		time.Sleep(windows{w.idle}.end(w.now()) - w.now())
		p.nap(upTo(r, 60*time.Millisecond))
		keys := []string{strconv.Itoa(r.IntN(w.keys))}
		switch {
		case w.pairs && keys[0] == "0":
			keys = []string{"1", "0"}
		case w.several && chance(draws, 50):
			two := draws.Perm(w.keys)
			keys = []string{strconv.Itoa(two[0]), strconv.Itoa(two[1])}
		}
		wait := between(r, 5*time.Millisecond, 2*w.ttl)
		if w.quiet {
			wait = 100 * w.ttl // nobody leaves the queue
		}
		lock, err := p.takeAll(keys, wait, chance(r, 30), WithTTL(between(r, w.ttl/4, w.ttl)))
		if err != nil {
			continue
		}
		h := w.grantedAll(p, keys, lock)
		if w.several && !p.dead() && chance(draws, 40) {
			w.nested(p, h, draws, wait)
		}
		work := 30 * time.Millisecond
		switch nth := r.IntN(20); {
		case w.quiet:
		case nth < 2:
			work = 3 * w.ttl
		case nth < 5:
			work = w.ttl / 2
		}
		p.nap(upTo(r, work))
		if now := w.now(); lock.Err() == nil {
			w.believes(h, now)
			p.nap(upTo(r, 10*time.Millisecond)) // the lock may be lost meanwhile
			w.write(h)
		}
		if !p.dead() {
			w.unlock(h)
			continue
		}
		w.awaitEnd(h, lock)
	}
}

// awaitEnd waits for the end of the lock of a dead process.
func (w *world) awaitEnd(h *holder, lock *Lock) {
	select {
	case <-lock.Context().Done():
	case <-time.After(time.Minute):
		w.violated(allEnds, "grant %d, of a dead process, after a minute", h.order)
	}
}

// nested takes and frees, within a lock, all keys that come after those of that.
func (w *world) nested(p *process, outer *holder, r *rand.Rand, wait time.Duration) {
	last := outer.key
	for _, other := range outer.others {
		last = max(last, other.key)
	}
	var keys []string
	for n, _ := strconv.Atoi(last); n+1 < w.keys; n++ {
		keys = append(keys, strconv.Itoa(n+1))
	}
	if len(keys) == 0 {
		return
	}
	if lock, err := p.takeAll(keys, wait, false, WithTTL(w.ttl)); err == nil {
		h := w.grantedAll(p, keys, lock)
		p.nap(upTo(r, 10*time.Millisecond))
		if p.dead() {
			w.awaitEnd(h, lock)
			return
		}
		w.unlock(h)
	}
}

// operate inspects keys and releases some by force, for as long as there are faults. Meanwhile another lock may have the key.
func (w *world) operate(p *process, r *rand.Rand) {
	for w.now() < w.faults.to && !p.left() {
		p.nap(upTo(r, 300*time.Millisecond))
		key, slot := p.spell(strconv.Itoa(r.IntN(w.keys))), 0
		if w.slots > 1 {
			slot = r.IntN(w.slots)
		}
		shown, stored, fence := Operator.Holder(context.Background(), p.locker, key, slot)
		if shown == "" {
			continue
		}
		p.nap(upTo(r, 10*time.Millisecond))
		token := w.inspectedToken(shown, stored)
		f := w.forcing(token)
		p.named.Store(fence)
		err := Operator.Force(context.Background(), p.locker, key, slot, fence)
		w.event("process %d releases %s with fence %d by force: %v", p.index, short(token), fence, err)
		if err == nil {
			w.mu.Lock()
			f.done = min(f.done, w.now())
			w.mu.Unlock()
		}
	}
}

func (w *world) unlock(h *holder) {
	w.over(h)
	for _, other := range h.others {
		w.over(other)
	}
	now := w.now()
	err := h.Unlock()
	w.event("process %d unlocks grant %d: %v", h.process.index, h.order, err)
	if err == nil {
		w.believes(h, now)
		for _, other := range h.others {
			w.believes(other, now)
		}
	} else {
		w.repeated.Store(int64(w.now() + link.OwedGap))
	}
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
				all.Go(func() {
					<-p.started
					f(p, r)
				})
			}
		}
	}
	all.Wait()
}

// run lives a world from its start to its end.
func (w *world) run() {
	var starts, closes sync.WaitGroup
	defer closes.Wait()
	for _, p := range w.processes {
		p.started, p.told, p.reached = make(chan struct{}), make(map[*simServer]heard), make(map[int]time.Duration)
	}
	w.live()
	for _, p := range w.processes {
		if p.born == 0 {
			starts.Go(p.start)
		} else {
			go p.start()
		}
		if p.closes < never {
			closes.Go(p.close)
		}
	}
	starts.Wait()
	time.Sleep(w.faults.from - w.now())
	var operators sync.WaitGroup
	if w.forces {
		operators.Go(func() { w.each(false, w.operate) })
	}
	w.each(true, w.client)
	operators.Wait()

	time.Sleep(w.late + w.guard + 4*w.ttl) // what is under way comes in, and all servers vote
	w.expectNoKeys("after the end of all leases")
	w.each(false, func(p *process, r *rand.Rand) { // who is left has to get each lock, and leaves none
		for key := range w.keys {
			if !p.left() {
				w.settle(p, r, strconv.Itoa(key))
			}
		}
	})
	w.calm.Store(true)
	w.each(false, func(p *process, _ *rand.Rand) {
		for end := w.now() + 2*link.MostPause; !p.connected() && !p.left() && w.now() < end; {
			time.Sleep(link.OwedGap / 10)
		}
	})
	w.lastTurns()
	time.Sleep(2*link.OwedGap + 8*w.timeout)
	w.expectNoKeys("after all calls")
	w.each(false, func(p *process, _ *rand.Rand) { _ = p.locker.Close() })
	close(w.ended)
	time.Sleep(w.late + time.Second) // what was sent on a connection that has ended arrives: no goroutine may sleep when the bubble ends
	w.judge()
}

// settle takes a lock when there are no more faults but lost messages, after calls that give up.
func (w *world) settle(p *process, r *rand.Rand, key string) {
	lock, err := p.take(key, 10*w.ttl, false)
	if refused := p.locker.heart.refusal(); refused != nil {
		w.mu.Lock()
		lapsed := w.lapsed
		w.mu.Unlock()
		if p.first && !lapsed {
			w.violated(staysFirst, "process %d: %v", p.index, refused)
		}
		return
	}
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

// simulate runs a world.
func simulate(t *testing.T, seed uint64, m mutant) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed, m)
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

// number is what the environment says, or otherwise.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestSimulation: whatever goes wrong, the properties hold. SEEDS is the number of worlds, SEED the
// first one.
func TestSimulation(t *testing.T) {
	count := uint64(300)
	if redistest.Few() {
		count = 40
	}
	worlds := number(t, "SEEDS", count)
	var grants, lost atomic.Int64
	seeds(t, number(t, "SEED", 1), worlds, func(t *testing.T, seed uint64) bool {
		w := simulate(t, seed, mutant{})
		grants.Add(int64(len(w.held)))
		lost.Add(w.lost)
		if len(w.broken) > 0 {
			t.Errorf("seed %d: %v\n%s", seed, w.broken, w.trace())
		} else if worlds == 1 {
			t.Log(w.trace()) // with -v
		}
		return len(w.broken) == 0
	})
	t.Logf("%d locks, %d of them lost", grants.Load(), lost.Load())
}
