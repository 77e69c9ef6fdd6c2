package redlock

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// clockMutants are about restarts, clocks and fences.
var clockMutants = []mutant{
	{
		name: "no restart guard", breaks: exclusion,
		shape: func(w *world) { w.guard = 0 },
	},
	{
		name: "no restart guard, for fences", breaks: fencing,
		shape: func(w *world) {
			w.guard = 0
			w.busy(4)
			for _, s := range w.servers {
				s.downs = w.windows(4, 200*time.Millisecond)
			}
		},
	},
	{
		name: "a changed run id goes unnoticed", breaks: exclusion, from: 274,
		greet: func(l *route, s *protocol.Server) { s.RunID = l.String() },
		// The registration comes with the connection, and would notice the loss in another way.
		answer: unborn,
	},
	{
		name: "the guard trusts the server's uptime", breaks: exclusion,
		shape: clocksSetAfterStart,
		greet: func(l *route, s *protocol.Server) {
			l.seat.Load().ForgetRun() // as if each start were the first that is seen
			s.Past = protocol.Past{}  // its memory would show that it has started since
		},
	},
	{
		name: "the guard counts from the last reply of the former run", breaks: exclusion,
		shape: cutOffBeforeRestart,
		greet: func(l *route, s *protocol.Server) {
			seat := l.seat.Load()
			if last := seat.Clock.LastSeen(); !last.IsZero() && seat.LastReached().RunID != s.RunID {
				s.Received, s.Time = last, 0
			}
		},
	},
	{
		name: "no raise of the fence", breaks: fencing,
		send: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpExtend {
				cmd.Fence = 0 // it succeeds, and stores no fence
			}
		},
	},
	{
		name: "proposals are stored unclamped", breaks: fencing,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			_, _, held := m.Leases.Get(cmd.Key, m.Clock())
			if cmd.Op != protocol.OpAcquire || held {
				return false
			}
			m.Do([]*protocol.Command{cmd})
			cmd.Reply.Fence = max(cmd.Reply.Fence, cmd.Fence)
			m.Fences.Set(cmd.Key, cmd.Reply.Fence, m.Clock(), protocol.FenceLife(cmd.Reply.Fence, m.Clock().UnixMicro()))
			return true
		},
	},
	{
		name: "fences follow the clock, not the last fence", breaks: fencing,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			m.Fences.Delete(cmd.Key)
			return false
		},
	},
	{
		name: "the fence of one set between neighbors", breaks: fencing,
		fence: func(k *Lock) uint64 {
			var fences []int64
			for _, ballot := range k.attempt.Ballots() {
				if ballot.Granted {
					fences = append(fences, int64(ballot.Fence))
				}
			}
			fence, _ := withinOneSet(fences, len(k.call.voters.Streams), k.call.voters.Quorum)
			return uint64(fence)
		},
	},
	{
		name: "each process counts its fences by itself", breaks: fencing,
		fence: func(k *Lock) uint64 {
			own, _ := ownFences.LoadOrStore(k.call.shared, new(atomic.Uint64))
			return own.(*atomic.Uint64).Add(1)
		},
	},
	{
		name: "each process asks one master, a different one", breaks: exclusion,
		shape: func(w *world) {
			for _, p := range w.processes {
				p.routes = p.routes[p.index%len(p.routes):][:1]
			}
		},
	},
	{
		name: "two steps at once", breaks: exclusion, apart: true,
		answer: func(_ *route, cmd *protocol.Command) { forgetOthers(cmd) },
	},
}

// ownFences has the last fence of each Locker.
var ownFences sync.Map

// clocksSetAfterStart has servers restart, and their clocks set forward just after, by as much as the
// guard. That is more than fences allow for.
func clocksSetAfterStart(w *world) {
	w.moves, w.guard = nil, w.ttl+time.Second
	for _, s := range w.servers {
		if at := between(w.random, w.faults.from, w.faults.to-w.ttl); chance(w.random, 70) {
			s.downs = windows{{at, at + 50*time.Millisecond}}
			s.jumpAt, s.jump = at+51*time.Millisecond, w.guard
		}
	}
}

// cutOffBeforeRestart has servers restart that one process could not reach for long, while others could.
func cutOffBeforeRestart(w *world) {
	w.moves, w.guard = nil, w.ttl+time.Second
	restart := w.faults.from + 2*w.guard
	w.faults.to = restart + 2*w.ttl
	for _, s := range w.servers[1:] {
		s.jump, s.downs, s.hangs = 0, windows{{restart, restart + 50*time.Millisecond}}, nil
	}
	for _, l := range w.processes[0].routes {
		l.there = windows{{w.faults.from, restart}}
	}
}

// TestGuardsKeepExclusion has what these mutants meet, without them.
func TestGuardsKeepExclusion(t *testing.T) {
	worlds := uint64(20)
	if redistest.Few() {
		worlds = 4
	}
	for name, shape := range map[string]func(*world){"clocks set after start": clocksSetAfterStart, "cut off before restart": cutOffBeforeRestart} {
		t.Run(name, func(t *testing.T) {
			seeds(t, 1, worlds, func(t *testing.T, seed uint64) bool {
				for _, broken := range simulate(t, seed, mutant{shape: shape}).broken {
					if strings.HasPrefix(broken, exclusion) {
						t.Errorf("seed %d: %s", seed, broken)
						return false
					}
				}
				return true
			})
		})
	}
}
