package redlock

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

// window is a time of the simulation in which something is wrong.
type window struct{ from, to time.Duration }

func (w window) String() string { return fmt.Sprintf("%v–%v", w.from, w.to) }

type windows []window

// end gives the end of the window that at lies in, or at itself.
func (ws windows) end(at time.Duration) time.Duration {
	for _, w := range ws {
		if w.from <= at && at < w.to {
			at = w.to
		}
	}
	return at
}

// world is one simulation: servers, processes that share them, and all that goes wrong, which is
// drawn from the seed before it begins. Its time is the fake time of a synctest bubble.
//
// It keeps to what the protocol assumes: a master's clock goes wrong by less than drift allows, and
// jumps once at most, by more than a round trip, after every process has seen it; the restart guard
// is above the spread of the clocks and twice the slack; a restart breaks all connections.
type world struct {
	seed         uint64
	start        time.Time
	ended        chan struct{} // closed when all Lockers are
	random       *rand.Rand    // while the world is made
	mutant       mutant
	guard        time.Duration
	ttl, timeout time.Duration // the max TTL; locks ask for less too
	late         time.Duration // how late what a broken connection held can still be executed
	faults       window        // the time of the faults
	calm         atomic.Bool   // nothing is lost any more
	quiet        bool          // nothing goes wrong but the servers' clocks
	idle         window        // in which nobody wants a lock, for minutes: most goes wrong meanwhile
	eternal      bool          // nor does any lease end: all depends on wake-ups
	keys         int
	slots        int          // the most that may hold a key at once: 1 in most worlds
	mixed        bool         // processes differ on how many may
	varied       bool         // so do keys
	neighbors    bool         // some processes have a server less
	apart        bool         // two steps at once: majorities of two processes may not meet
	pairs        bool         // where there are two keys, who wants the first wants both
	several      bool         // of three keys many want two, or take the others within a lock
	spelled      bool         // keys are asked for in capital and in small letters
	long         bool         // all results are
	ending       bool         // what is done once ends as its lock does
	passes       bool         // who meets a result that can't be read does the work
	forces       bool         // operators release keys by force
	trouble      trouble      // that befalls all masters in the end
	unled        atomic.Bool  // whoever leads gives an error
	wrong        bool         // some processes have masters of which majorities don't meet those of the others
	servers      []*simServer // each behind the address of its number, at first; then those that are in reserve
	moves        []move       // in the order of time
	processes    []*process
	routes       map[*simnet.Address]*route

	mu        sync.Mutex
	events    []event
	repeated  atomic.Int64 // when the last release that some master has missed is sent again, since the start
	attempts  atomic.Int64 // from when their processes know each server's clock
	refused   atomic.Int64 // calls for keys that have got no lock
	held      []*holder
	tokens    map[string]*holder
	broken    []string                 // the properties that don't hold
	lost      int64                    // how many locks were lost
	stored    map[string]*holder       // by key, the last write that the store took
	confirmed map[string]confirmed     // by key, the last result that a quorum is said to remember
	onces     int                      // clients that were given their draws of what is to be done once
	forced    map[string]*force        // by token
	calls     []wanted                 // that have returned
	inspected map[inspectedHolder]bool // what servers have told of who holds a key
	lapsed    bool                     // others claimed their masters, or used them, when no quorum remembered those that were first
	births    map[*simServer]heard     // since when servers remember sets
	anew      bool                     // a process came into use like the first of all, as all its masters had just forgotten everything
}

// move puts another server behind an address. It breaks all connections there.
type move struct {
	at          time.Duration
	address, to int
}

// behind gives the server behind an address.
func (w *world) behind(address int) (s *simServer) {
	s = w.servers[address]
	for _, m := range w.moves {
		if m.address == address && m.at <= w.now() {
			s = w.servers[m.to]
		}
	}
	return s
}

// live has all happen in its time.
func (w *world) live() {
	for _, s := range w.servers {
		s.live()
	}
	for _, p := range w.processes {
		p.live()
	}
	for _, m := range w.moves {
		w.at(m.at, func() {
			for _, l := range w.routes {
				if l.address == m.address {
					l.LoseClients() // what they have sent arrives
					l.MoveTo(w.servers[m.to].Server)
				}
			}
		})
	}
}

// at has something happen at a time.
func (w *world) at(at time.Duration, happen func()) {
	if at <= w.now() {
		happen()
	} else {
		time.AfterFunc(at-w.now(), happen)
	}
}

// each has something begin with each window, and end with the last of those that overlap.
func (ws windows) each(w *world, begin, end func()) {
	for _, one := range ws {
		w.at(one.from, func() {
			begin()
			w.at(one.to, func() {
				if ws.end(w.now()) == w.now() {
					end()
				}
			})
		})
	}
}

type event struct {
	at   time.Duration
	form string
	args []any
}

func (w *world) now() time.Duration { return time.Since(w.start) }

func (w *world) event(form string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event{w.now(), form, args})
}

// never is after the end of every world.
const never = 24 * time.Hour

// upTo is a random time.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d) + 1)) }

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + upTo(r, most-least)
}

func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

func newWorld(t *testing.T, seed uint64, m mutant) *world {
	r := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		seed: seed, start: time.Now(), ended: make(chan struct{}), random: r, mutant: m,
		ttl:     between(r, 1000*time.Millisecond, 1500*time.Millisecond),
		timeout: between(r, 20*time.Millisecond, 50*time.Millisecond),
		faults:  window{500 * time.Millisecond, between(r, 2500*time.Millisecond, 5*time.Second)},
		keys:    1 + r.IntN(2),
		pairs:   chance(r, 30),
		tokens:  make(map[string]*holder), stored: make(map[string]*holder), confirmed: make(map[string]confirmed), forced: make(map[string]*force), inspected: make(map[inspectedHolder]bool), births: make(map[*simServer]heard), routes: make(map[*simnet.Address]*route),
	}
	w.pairs = w.pairs && w.keys == 2
	w.late = between(r, 0, 2*w.ttl)
	far := 15 * time.Millisecond
	if chance(r, 20) {
		far, w.timeout = 60*time.Millisecond, 100*time.Millisecond
	}
	crashes, hangs, jumps, cuts, pauses, losses := r.IntN(3), r.IntN(3), chance(r, 50), r.IntN(3), r.IntN(3), 8
	w.quiet = m.quiet || chance(r, 15) && m.name == ""
	if w.quiet {
		crashes, hangs, jumps, cuts, pauses, losses, far = 0, 0, false, 0, 0, 1, 4*time.Millisecond
		w.timeout = 50 * time.Millisecond
		w.eternal = chance(r, 50) || m.quiet
	}
	if w.eternal {
		w.ttl = 5 * time.Minute
	}
	if rests := rand.New(rand.NewPCG(seed, 400)); !w.quiet && m.name == "" && chance(rests, 5) {
		w.idle = window{w.faults.to, w.faults.to + between(rests, time.Minute, 5*time.Minute)}
		w.faults.to = w.idle.to + 2*time.Second
	}
	var spread time.Duration
	masters, reserve := 3+2*r.IntN(2), 0
	if at := between(r, w.faults.from, w.faults.to); !w.quiet && chance(r, 40) && m.fence == nil && !m.apart {
		one, other := r.IntN(masters), r.IntN(masters-1)
		if one == other {
			other = masters - 1
		}
		if chance(r, 50) { // two servers swap their addresses
			w.moves = []move{{at, one, other}, {at + upTo(r, w.ttl)*time.Duration(r.IntN(2)), other, one}}
		} else { // two servers are replaced by empty ones
			reserve = 2
			w.moves = []move{{at, one, masters}, {at + upTo(r, w.ttl), other, masters + 1}}
		}
	}
	for i, server := range simnet.New(t, masters+reserve).Servers {
		s := &simServer{Server: server, world: w, index: i}
		s.skew = between(r, -300*time.Millisecond, 300*time.Millisecond)
		if s.fast = r.IntN(17) - 8; w.idle.to > 0 { // in thousandths
			s.fast = 0 // the guard covers the skew of seconds, not of minutes
		}
		if jumps && chance(r, 50) {
			s.jumpAt = between(r, w.faults.from, w.faults.to)
			s.jump = between(r, 800*time.Millisecond, 1500*time.Millisecond)
			if chance(r, 40) {
				s.jump = -s.jump
			}
		}
		spread = max(spread, 2*(s.skew.Abs()+s.jump.Abs()+100*time.Millisecond))
		s.downs = w.windows(crashes, 200*time.Millisecond)
		s.hangs = w.windows(hangs, w.ttl)
		w.servers = append(w.servers, s)
	}
	w.guard = max(w.ttl, spread+2*protocol.FenceSlack) + time.Second
	if steps := rand.New(rand.NewPCG(seed, 200)); !w.quiet {
		w.neighbors = chance(steps, 30) && w.moves == nil || m.fence != nil
		w.apart = m.apart && len(w.servers) == 5
	}
	if w.eternal {
		w.guard = 0
		if chance(r, 50) { // exactly a quorum lives
			for _, s := range w.servers[:len(w.servers)/2] {
				s.downs = windows{{-time.Hour, 1 << 62}}
			}
		}
	}
	more := rand.New(rand.NewPCG(seed, 50)) // for what has come later: the rest of a seed's world stays as it was
	for i := range 2 + r.IntN(2) {
		p := &process{world: w, index: i, pauses: w.windows(pauses, w.ttl), clients: 1 + r.IntN(2), dies: time.Hour}
		if w.quiet {
			p.clients = 1 + r.IntN(4)
		} else if chance(r, 15) {
			p.dies = between(r, w.faults.from, w.faults.to)
		}
		if chance(r, 30) {
			p.skew = between(r, -5*time.Second, 5*time.Second)
		}
		p.halfOpen = chance(r, 50)
		if solo := rand.New(rand.NewPCG(seed, uint64(900+i))); chance(solo, 30) {
			p.solo = upTo(solo, w.timeout)
		}
		drops := rand.New(rand.NewPCG(seed, uint64(300+i)))
		lacks := w.lacks(rand.New(rand.NewPCG(seed, uint64(201+i))))
		for j := range masters {
			if lacks[j] {
				continue
			}
			l := p.route(j, rand.NewPCG(seed, uint64(1+10*i+j)), between(r, 0, far), r.IntN(losses)*r.IntN(2))
			l.there, l.back = w.windows(r.IntN(cuts+1), w.ttl), w.windows(r.IntN(cuts+1), w.ttl)
			if at := between(drops, w.faults.from, w.faults.to); !w.quiet && chance(drops, 10) {
				l.drops = windows{{at, at + upTo(drops, 2*w.ttl)}}
			}
		}
		p.closes = never
		if chance(more, 15) {
			p.closes = between(more, 0, w.faults.to)
		}
		_ = chance(more, 15) // drawn, so that the seeds that find mutants stay the same
		w.processes = append(w.processes, p)
	}
	w.forces = !w.quiet && m.name == "" && chance(rand.New(rand.NewPCG(seed, 500)), 30)
	if several := rand.New(rand.NewPCG(seed, 800)); m.name == "" && chance(several, 25) {
		w.pairs, w.several, w.keys = false, true, 3
	}
	if blocks := rand.New(rand.NewPCG(seed, 700)); m.name == "" && chance(blocks, 20) {
		w.block(blocks)
	}
	if endings := rand.New(rand.NewPCG(seed, 600)); !w.quiet && m.name == "" && chance(endings, 20) {
		longEndings(w)
	}
	if slots := rand.New(rand.NewPCG(seed, 900)); m.name == "" && chance(slots, 30) {
		w.manySlots(slots)
		if chance(slots, 35) {
			w.severalSlots(chance(slots, 70))
		}
	}
	if m.name == "" && !w.quiet {
		w.drawTrouble(rand.New(rand.NewPCG(seed, 950)))
	}
	w.spelled = m.name == "" && chance(rand.New(rand.NewPCG(seed, 970)), 25)
	if m.shape != nil {
		m.shape(w)
	}
	return w
}

// lacks draws the servers that a process doesn't have.
func (w *world) lacks(r *rand.Rand) map[int]bool {
	last := len(w.servers) - 1
	switch {
	case w.apart && chance(r, 50):
		return map[int]bool{last: true, 0: true}
	case w.apart:
		return map[int]bool{last: true, 1: true}
	case w.neighbors && chance(r, 50):
		return map[int]bool{last: true}
	}
	return nil
}

// lockedSource is for those that draw at the same time.
type lockedSource struct {
	mu     sync.Mutex
	source rand.Source
}

func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Uint64()
}

// windows draws up to n windows within the time of the faults.
func (w *world) windows(n int, longest time.Duration) (ws windows) {
	for range n {
		from := between(w.random, w.faults.from, w.faults.to)
		ws = append(ws, window{from, from + upTo(w.random, longest)})
	}
	return ws
}

// trace tells what has happened.
func (w *world) trace() string {
	var b strings.Builder
	for _, s := range w.servers {
		fmt.Fprintf(&b, "server %d: skew %v, %d/1000 fast, jump %v at %v, down %v, hung %v\n", s.index, s.skew, s.fast, s.jump, s.jumpAt, s.downs, s.hangs)
	}
	fmt.Fprintf(&b, "ttl %v, timeout %v, guard %v, late %v, faults %v\n", w.ttl, w.timeout, w.guard, w.late, w.faults)
	for _, p := range w.processes {
		fmt.Fprintf(&b, "process %d: masters %v, starts %v, dies %v, closes %v\n", p.index, p.routes, p.born, p.dies, p.closes)
	}
	fmt.Fprintf(&b, "moves %v\n", w.moves)
	for _, e := range w.events {
		fmt.Fprintf(&b, "%12v "+e.form+"\n", append([]any{e.at}, e.args...)...)
	}
	return b.String()
}
