package redlock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// staysFirst is that who was there first goes on, whatever the masters forget.
const staysFirst = "a process that was first is refused"

// wrongProcesses gives one process, or several, other masters than the rest, in either order of the names; it shares one with
// them. It starts later, or is cut off until then. From then on processes are killed, close and start again, and the masters forget,
// hang, flap and are cut off as in other worlds.
func wrongProcesses(w *world) {
	r := w.random
	if len(w.servers) != 5 || w.quiet {
		return
	}
	w.moves, w.neighbors, w.faults.to, w.wrong = nil, false, w.faults.to+12*time.Second, true
	here, there := map[int]bool{3: true, 4: true}, map[int]bool{1: true, 2: true} // what they lack
	if chance(r, 50) {
		here, there = there, here
	}
	comes := between(r, time.Second, 2*time.Second)
	late := window{comes + time.Second, w.faults.to}
	for _, s := range w.servers {
		s.jump, s.downs, s.hangs = 0, nil, nil
		for range 2 {
			at := between(r, late.from, late.to)
			s.downs = append(s.downs, window{at, at + upTo(r, 200*time.Millisecond)})
			at = between(r, late.from, late.to)
			s.hangs = append(s.hangs, window{at, at + upTo(r, w.ttl)})
		}
	}
	wrong := 1 + r.IntN(len(w.processes)-1)
	starts := rand.New(rand.NewPCG(w.seed, 600))
	for i, p := range w.processes {
		p.first, p.pauses = i < len(w.processes)-wrong, nil
		if p.blocks.what == "connection" { // nobody is cut off for longer than a set is remembered
			p.blocks.what = "log"
		}
		lacks := there
		if p.first {
			lacks = here
		}
		if !p.first && chance(starts, 50) {
			p.born = comes
		}
		var routes []*route
		for _, l := range p.routes {
			if lacks[l.address] {
				continue
			}
			at := between(r, late.from, late.to)
			l.there, l.back, l.drops = windows{{at, at + upTo(r, w.ttl)}}, nil, nil
			if !p.first && p.born == 0 {
				l.there = append(l.there, window{0, comes})
			}
			routes = append(routes, l)
		}
		p.routes = routes
		if chance(starts, 40) {
			w.restarts(p, between(starts, late.from, late.to), starts)
		}
	}
}

// restarts has a process end at a time, and start again soon. The others must be able to tell one with other masters that they are
// there (docs/DESIGN.md): so then the shared master isn't silent just as it starts.
func (w *world) restarts(p *process, at time.Duration, r *rand.Rand) {
	again := &process{world: w, index: len(w.processes), clients: p.clients, first: p.first, dies: time.Hour, closes: never, skew: p.skew}
	again.born = at + upTo(r, 2*w.ttl)
	shared := w.servers[0]
	if !p.first {
		again.born = arrival(again.born, shared.downs.before(2*time.Second), shared.hangs.before(2*time.Second))
	}
	if chance(r, 50) {
		p.dies = at
	} else {
		p.closes = at
	}
	for _, l := range p.routes {
		again.route(l.address, rand.NewPCG(r.Uint64(), 0), l.far, l.loss*min(l.address, 1))
	}
	w.processes = append(w.processes, again)
}

// before returns the windows that begin so much earlier.
func (ws windows) before(d time.Duration) (earlier windows) {
	for _, w := range ws {
		earlier = append(earlier, window{w.from - d, w.to})
	}
	return earlier
}

// outlived is that a lock must not be taken that may be valid for longer than its process is remembered.
const outlived = "a quorum remembers the process of a lock until that ends"

// heard is when a server, in which of its lives, was told that a process locks, or is about to.
type heard struct {
	at    time.Duration
	epoch int
	locks bool
}

// beats notes what a server is told of a process, and when others begin to lock. The server's mu is held.
func (w *world) beats(s *simServer, m *memory.Master, p *process, beat *protocol.Beat) {
	epoch, _ := s.life()
	w.mu.Lock()
	defer w.mu.Unlock()
	locks := beat.Since > 0
	if w.births[s].epoch != epoch || w.births[s].at == 0 {
		w.births[s] = heard{at: w.now(), epoch: epoch}
	}
	if w.wrong && p.first && p.locks && !locks && !p.remembered() {
		w.lapsed = true
	}
	if told, known := m.Processes.Told[beat.ID]; known && told.Number > beat.Number {
		return // it comes late, from a connection that has broken
	}
	if p.told[s] = (heard{w.now(), epoch, locks}); beat.Since < 0 {
		delete(p.told, s)
		p.stopped = w.now()
	}
	begins := locks && !p.locks
	if locks != p.locks {
		p.locks = locks
		w.events = append(w.events, event{w.now(), "process %d may lock: %t", []any{p.index, locks}})
	}
	n := strings.Count(beat.About, `"run"`)
	w.events = append(w.events, event{w.now(), "process %d tells server %d that it reaches %d masters, and locks since %d", []any{p.index, s.index, n, beat.Since}})
	p.reached[n] = w.now()
	if w.wrong && begins && !w.remembered(p.first, p) && (!w.servers[0].remembers() || w.lacking(p)) {
		w.anew = true
	}
	if w.wrong && beat.Since >= 0 && !p.first && !w.remembered(true, nil) {
		w.lapsed = true
	}
}

// remembers reports whether the server has been told by all, since it has lost its data if it has. The world's mu is held.
func (s *simServer) remembers() bool {
	epoch, _ := s.life()
	born := s.world.births[s]
	return epoch == 0 || born.epoch == epoch && s.world.now()-born.at > 2*heartbeat.Every
}

// lacking reports whether a process and one of the other side have lacked masters just now, so that both may lock until they have them
// again. The world's mu is held.
func (w *world) lacking(p *process) bool {
	return slices.ContainsFunc(w.processes, func(q *process) bool {
		return q.first != p.first && q.locks && p.reaches()+q.reaches()-1 < p.quorum()+q.quorum() // they share one
	})
}

// remembered reports whether a quorum of its masters remembers that a process uses them which was first, or one that was not, other
// than this one. The world's mu is held.
func (w *world) remembered(first bool, but *process) bool {
	return slices.ContainsFunc(w.processes, func(p *process) bool { return p.first == first && p != but && p.remembered() })
}

// remembered reports whether a quorum of its masters remembers that the process locks. The world's mu is held.
func (p *process) remembered() bool {
	n, w := 0, p.world
	for s, h := range p.told {
		if epoch, _ := s.life(); h.locks && epoch == h.epoch && w.now() < h.at+w.ttl+protocol.FenceTTL {
			n++
		}
	}
	return n >= p.quorum()
}

func (p *process) quorum() int { return len(p.routes)/2 + 1 }

// reaches returns how many masters the process has told of in the last beats that it reaches, at least. The world's mu is held.
func (p *process) reaches() int {
	least := len(p.routes)
	for n, at := range p.reached {
		if p.world.now()-at < 2*heartbeat.Every {
			least = min(least, n)
		}
	}
	return least
}

// judgeBeats looks whether a quorum, without what it may have forgotten, remembers a lock's process until the lock ends. The
// world's mu is held.
func (w *world) judgeBeats(h *holder) (until time.Duration, ok bool) {
	var told []time.Duration
	for _, heard := range h.process.told {
		told = append(told, heard.at)
	}
	slices.Sort(told)
	if quorum := h.process.quorum(); len(told) >= quorum {
		until = told[len(told)-quorum] + w.ttl + protocol.FenceTTL
	}
	return until, h.until() <= until || h.process.stopped > 0 && w.now()-h.process.stopped < 2*w.timeout // it may have been won before
}

// TestWrongProcesses: beside processes with other masters there is one holder of each key, and who was first goes on. SEEDS is the
// number of worlds, SEED the first one.
func TestWrongProcesses(t *testing.T) {
	count := uint64(60)
	if redistest.Few() {
		count = 10
	}
	worlds := number(t, "SEEDS", count)
	var grants, anew, lapsed atomic.Int64
	seeds(t, number(t, "SEED", 1), worlds, func(t *testing.T, seed uint64) bool {
		w := simulate(t, seed, mutant{shape: wrongProcesses})
		grants.Add(int64(len(w.held)))
		if w.anew {
			anew.Add(1)
		}
		if w.lapsed {
			lapsed.Add(1)
		}
		for _, broken := range w.broken {
			if strings.HasPrefix(broken, exclusion) && !w.anew || strings.HasPrefix(broken, outlived) || strings.HasPrefix(broken, staysFirst) {
				t.Errorf("seed %d: %s\n%s", seed, broken, w.trace())
				return false
			}
		}
		return true
	})
	t.Logf("%d locks; in %d worlds a process came when the shared master had just forgotten everything, or others lacked masters; in %d others claimed their masters when no quorum remembered the first", grants.Load(), anew.Load(), lapsed.Load())
	if worlds >= 10 && 2*lapsed.Load() > int64(worlds) {
		t.Error("most worlds don't show whether who was first goes on")
	}
}

// unborn hides that a master has forgotten who is registered.
func unborn(_ *route, cmd *protocol.Command) {
	if beats, ok := cmd.Reply.Answer.(*protocol.Beats); ok {
		beats.Born = min(beats.Born, 1)
	}
}

// beatMutants are wrong versions of what is told and heard of processes.
var beatMutants = []mutant{
	{
		name: "a time-out counts as a refused connection", breaks: exclusion, from: 656, shape: wrongProcesses, refuses: true,
		answer: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpBeat && cmd.Reply.Err != nil {
				cmd.Reply.Err = protocol.Unreachable(errDown)
			}
		},
	},
	{
		name: "others go unheard", breaks: exclusion, shape: wrongProcesses,
		answer: func(_ *route, cmd *protocol.Command) { forgetOthers(cmd) },
	},
}

// forgetOthers takes other processes out of the reply to a beat.
func forgetOthers(cmd *protocol.Command) {
	if beats, ok := cmd.Reply.Answer.(*protocol.Beats); ok {
		beats.Lines = ""
	}
}

// TestLocksEndBeforeTheyAreForgotten: where masters grant locks, but hear of no process any more, no lock is taken that is valid for
// longer than they remember its process.
func TestLocksEndBeforeTheyAreForgotten(t *testing.T) {
	worlds := uint64(10)
	if redistest.Few() {
		worlds = 4
	}
	seeds(t, 1, worlds, func(t *testing.T, seed uint64) bool {
		var in *world
		for _, broken := range simulate(t, seed, mutant{
			shape: func(w *world) {
				in, w.faults.to = w, 15*time.Second
			},
			serve: func(_ *memory.Master, cmd *protocol.Command) (deaf bool) {
				if deaf = cmd.Op == protocol.OpBeat && in.now() > 2*time.Second; deaf {
					cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
				}
				return deaf
			},
		}).broken {
			if strings.HasPrefix(broken, outlived) {
				t.Errorf("seed %d: %s", seed, broken)
				return false
			}
		}
		return true
	})
}
