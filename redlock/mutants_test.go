package redlock

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// mutant is a wrong version of the code, made where the simulation touches it: at its settings, at
// what a process sends and hears, and at what a server does. The zero value changes nothing.
type mutant struct {
	name    string
	breaks  string // the property, as a violation of it begins
	quiet   bool   // only in worlds where all depends on wake-ups
	shape   func(w *world)
	send    func(l *link, cmd *protocol.Command)                    // before it is sent
	delayed func(cmds []protocol.Command, trip time.Duration)       // before they are sent; they will be under way so long
	answer  func(l *link, cmd *protocol.Command)                    // when it is answered
	greet   func(l *link, s *protocol.Server)                       // when a connection is made
	serve   func(m *memory.Master, cmd *protocol.Command) (ok bool) // in place of the server, if it says so
	ahead   func(cmd *protocol.Command) bool                        // the sender doesn't wait for its answer
	hear    func(l *link, w protocol.WakeUp) bool                   // whether a wake-up is sent
	fence   func(a *attempt) uint64                                 // in place of the lock's, between neighbours
	apart   bool                                                    // only with masters of which majorities may not meet
}

// busy gives each process so many clients.
func (w *world) busy(clients int) {
	for _, p := range w.processes {
		p.clients = clients
	}
}

// mutants are what must not go unnoticed. Each is the code without one of its rules.
var mutants = []mutant{
	{
		name: "no restart guard", breaks: exclusion,
		shape: func(w *world) { w.guard = 0 },
	},
	{
		name: "no restart guard, for fences", breaks: fencing,
		shape: func(w *world) {
			w.guard = 0
			w.busy(4)
		},
	},
	{
		name: "a changed run id goes unnoticed", breaks: exclusion,
		greet: func(l *link, s *protocol.Server) { s.RunID = l.String() },
	},
	{
		name: "the guard trusts the server's uptime", breaks: exclusion,
		shape: clocksSetAfterStart,
		greet: func(l *link, _ *protocol.Server) {
			l.seat.mu.Lock()
			defer l.seat.mu.Unlock()
			l.seat.runID = "" // as if each start were the first that is seen
			l.seat.clock.forget()
		},
	},
	{
		name: "the guard counts from the last answer of the former run", breaks: exclusion,
		shape: cutOffBeforeRestart,
		greet: func(l *link, s *protocol.Server) {
			if last := l.seat.clock.lastSeen(); !last.IsZero() && l.seat.runID != s.RunID {
				s.Received, s.Time = last, 0
			}
		},
	},
	{
		name: "no raise of the fence", breaks: fencing,
		send: func(_ *link, cmd *protocol.Command) {
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
		name: "the fence of one set between neighbours", breaks: fencing,
		fence: func(a *attempt) uint64 {
			n, quorum := len(a.calls), a.locker.quorum
			fence, _ := withinOneSet(a.fences(), n, quorum)
			return uint64(fence)
		},
	},
	{
		name: "two steps at once", breaks: exclusion, apart: true,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op == protocol.OpRegister { // nobody hears of others
				cmd.Reply = protocol.Reply{Time: m.Clock().UnixMicro()}
			}
			return cmd.Op == protocol.OpRegister
		},
	},
	{
		name: "one token for all attempts", breaks: exclusion,
		shape: func(w *world) {
			w.busy(1)
		},
		send: func(l *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire || cmd.Op == protocol.OpExtend || cmd.Op == protocol.OpRelease {
				cmd.Token = fmt.Sprint("of process ", l.process.index)
			}
		},
	},
	{
		name: "a pass uses the former token again", breaks: exclusion,
		shape: func(w *world) {
			w.keys = 1
			for _, p := range w.processes {
				p.clients = 6
				for _, l := range p.links {
					l.loss = 10
				}
			}
		},
		send: func(l *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire && cmd.Former != "" {
				cmd.Former = l.process.recall(cmd.Former)
				l.process.memory.Store(cmd.Token, cmd.Former)
			}
			cmd.Token = l.process.recall(cmd.Token)
		},
	},
	{
		name: "release deletes whatever token is there", breaks: exclusion,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op != protocol.OpRelease {
				return false
			}
			m.Leases.Delete(cmd.Key)
			cmd.Reply = protocol.Reply{Status: protocol.StatusReleased}
			return true
		},
	},
	{
		name: "an unreachable master isn't counted in the quorum", breaks: exclusion,
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusGranted, Fence: cmd.Fence}
			}
		},
	},
	{
		name: "a renewal without an answer counts", breaks: exclusion,
		shape: cutOffWhileHolding,
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpExtend && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusGranted}
			}
		},
	},
	{
		name: "answers of an earlier renewal count", breaks: exclusion,
		shape: cutOffWhileHolding,
		answer: func(l *link, cmd *protocol.Command) {
			if cmd.Op != protocol.OpExtend {
				return
			}
			if answered := cmd.Token + l.String(); cmd.Reply.Status == protocol.StatusGranted {
				l.process.memory.Store(answered, "granted")
			} else if cmd.Reply.Err != nil && l.process.recall(answered) == "granted" {
				cmd.Reply = protocol.Reply{Status: protocol.StatusGranted}
			}
		},
	},
	{
		name: "validity is counted from the answer", breaks: exclusion,
		shape: func(w *world) { // answers come late
			w.busy(4)
			for _, p := range w.processes {
				p.pauses = w.windows(8, w.ttl)
			}
		},
		delayed: func(cmds []protocol.Command, trip time.Duration) {
			for i := range cmds { // the same as leases that begin so much earlier
				cmds[i].TTL = max(cmds[i].TTL-trip, 0)
			}
		},
	},
	{
		name: "jumps of a master's clock go unseen", breaks: exclusion,
		shape: func(w *world) { // they are about the same for all
			at := between(w.random, w.faults.from, w.faults.to)
			for _, s := range w.servers {
				s.jumpAt, s.jump = at+upTo(w.random, w.timeout), w.ttl
			}
		},
		answer: func(l *link, cmd *protocol.Command) {
			if s := l.server.Load(); cmd.Reply.Time > 0 && s.jump != 0 && s.world.now() >= s.jumpAt {
				cmd.Reply.Time -= s.jump.Microseconds()
			}
		},
	},
	{
		name: "refill without a deadline", breaks: noRefill,
		send: func(_ *link, cmd *protocol.Command) {
			if cmd.RefillUntil > 0 {
				cmd.RefillUntil = math.MaxInt64
			}
		},
	},
	{
		name: "a key without a TTL", breaks: allEnds + ": left",
		send: func(_ *link, cmd *protocol.Command) { cmd.TTL *= 1000 },
	},
	{
		name: "releases overtake acquires", breaks: allEnds + ": left",
		ahead: func(cmd *protocol.Command) bool { return cmd.Op == protocol.OpAcquire },
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire && cmd.Reply.Err != nil {
				cmd.Reply.Err = protocol.Mark(cmd.Reply.Err, protocol.ErrRefused)
			}
		},
	},
	{
		name: "a release that was missed isn't repeated", breaks: allEnds + ": left",
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpRelease && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusReleased}
			}
		},
	},
	{
		name: "a plain release that finds no key is enough", breaks: allEnds + ": left",
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Alone && cmd.Reply.Status == protocol.StatusExpired {
				cmd.Reply.Status = protocol.StatusReleased
			}
		},
	},
	{
		name: "tickets without a lease", breaks: allEnds + ": process",
		shape: func(w *world) { // a process dies unnoticed while it waits
			w.processes[0].dies, w.processes[0].halfOpen = between(w.random, w.faults.from, w.faults.to), true
		},
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			m.Do([]*protocol.Command{cmd})
			if q, _, ok := m.Queues.Get(cmd.Key, m.Clock()); ok {
				for i := range q.Places {
					q.Places[i].Ends = m.Clock().Add(time.Hour)
				}
				m.Queues.Set(cmd.Key, q, m.Clock(), time.Hour)
			}
			return true
		},
	},
	{
		name: "acquires ignore results", breaks: onceOnly,
		send: func(_ *link, cmd *protocol.Command) { cmd.Recall = false },
	},
	{
		name: "a key is freed before its result is stored", breaks: onceOnly,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op == protocol.OpRelease && cmd.Result != nil { // and the server has crashed in between
				released := *cmd
				released.Result = nil
				m.Do([]*protocol.Command{&released})
				cmd.Reply = released.Reply
				return true
			}
			return false
		},
	},
	{
		name: "a holder that has lost its lock leaves its result", breaks: onceOnly,
		shape: func(w *world) { // many are lost
			w.busy(4)
			for _, p := range w.processes {
				p.pauses = w.windows(4, w.ttl)
			}
		},
		send: func(l *link, cmd *protocol.Command) {
			w := l.process.world
			w.mu.Lock()
			defer w.mu.Unlock()
			if h := w.tokens[cmd.Token]; cmd.Op == protocol.OpRelease && h != nil && h.unlocked == 0 && strings.HasPrefix(h.key, "job") {
				cmd.Result, cmd.Anyway = &protocol.Result{Data: strconv.Itoa(h.order), Fence: int64(h.fence), Keep: never}, true
			}
		},
	},
	{
		name: "a result is stored before the work is done", breaks: onceOnly,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			m.Do([]*protocol.Command{cmd})
			if cmd.Op == protocol.OpAcquire && cmd.Recall && cmd.Reply.Status == protocol.StatusGranted {
				m.Results.Set(cmd.Key, protocol.Result{Data: "begun", Fence: cmd.Reply.Fence}, m.Clock(), never)
			}
			return true
		},
	},
	{
		name: "a result that one master remembers is returned as it is", breaks: onceOnly,
		send: func(l *link, cmd *protocol.Command) {
			if l.address > 0 && cmd.Op == protocol.OpRelease {
				cmd.Result = nil
			}
		},
	},
	{
		name: "a long result counts whose storing nobody has confirmed", breaks: onceOnly,
		shape: longResults,
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpStore && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusDone}
			}
		},
	},
	{
		name: "what can't be read is taken for undone", breaks: onceOnly,
		shape: func(w *world) {
			longResults(w)
			w.passes = true
		},
	},
	{
		name: "a key is freed before its long result is stored", breaks: onceOnly,
		shape: longResults,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			switch {
			case cmd.Op == protocol.OpStore && !cmd.Anyway: // and the server has crashed in between
				released := *cmd
				released.Op, released.Result = protocol.OpRelease, nil
				m.Do([]*protocol.Command{&released})
				cmd.Reply = protocol.Reply{Status: protocol.StatusDone}
			case cmd.Op == protocol.OpRelease:
				if m.Do([]*protocol.Command{cmd}); cmd.Reply.Status == protocol.StatusExpired {
					cmd.Reply.Status = protocol.StatusReleased
				}
			default:
				return false
			}
			return true
		},
	},
	{
		name: "a forced release is forgotten", breaks: byForce,
		shape: func(w *world) { w.forces = true },
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op != protocol.OpForce {
				return false
			}
			release := *cmd
			release.Op = protocol.OpRelease
			m.Do([]*protocol.Command{&release})
			cmd.Reply = release.Reply
			return true
		},
	},
	{
		name: "a forced release deletes whatever token is there", breaks: exclusion,
		shape: func(w *world) { w.forces = true },
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if token, _, held := m.Leases.Get(cmd.Key, m.Clock()); held && cmd.Op == protocol.OpForce {
				cmd.Token = token
			}
			return false
		},
	},
	{
		name: "a forced release ignores the fence", breaks: exclusion,
		shape: func(w *world) { w.forces = true },
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpInspect {
				cmd.Reply.Fence = 1
			}
		},
	},
	{
		name: "nobody is woken", breaks: awake, quiet: true,
		hear: func(*link, protocol.WakeUp) bool { return false },
	},
	{
		name: "a wake-up during an attempt is lost", breaks: awake, quiet: true,
		hear: func(l *link, w protocol.WakeUp) bool {
			return !slices.ContainsFunc(l.process.links, func(l *link) bool { return l.acquiring.Load() > 0 })
		},
	},
	{
		name: "a pass ignores older tickets", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			w.busy(8)
		},
		send: func(_ *link, cmd *protocol.Command) {
			if cmd.Former != "" {
				cmd.Ticket = 1
			}
		},
	},
	{
		name: "tickets by a wall clock that is set", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			w.keys = 1
			w.busy(3)
		},
		send: func(l *link, cmd *protocol.Command) {
			if l.process.index == 0 && cmd.Queue { // forward, back, and again
				steps := []time.Duration{0, time.Minute, -time.Minute}
				cmd.Ticket += steps[int(l.process.world.now()/(300*time.Millisecond))%len(steps)].Microseconds()
			}
		},
	},
	{
		name: "a try-lock jumps the queue", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			w.keys = 1
			w.busy(2)
		},
		send: func(_ *link, cmd *protocol.Command) {
			if cmd.Ticket == protocol.TryTicket {
				cmd.Ticket = 1
			}
		},
	},
}

// longResults has all results take the lane for them, on lines that break often.
func longResults(w *world) {
	w.long = true
	w.busy(3)
	for _, p := range w.processes {
		p.pauses = w.windows(4, w.ttl)
		for _, l := range p.links {
			l.loss = 10
		}
	}
}

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
	for _, l := range w.processes[0].links {
		l.there = windows{{w.faults.from, restart}}
	}
}

// cutOffWhileHolding has each process lose all that it sends for longer than a lease.
func cutOffWhileHolding(w *world) {
	w.keys = 1
	for _, p := range w.processes {
		at := between(w.random, w.faults.from, w.faults.to)
		for _, l := range p.links {
			l.drops = windows{{at, at + 2*w.ttl}}
		}
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

// TestMutants: the simulation finds each of them. A property that no mutant breaks is not tested.
func TestMutants(t *testing.T) {
	t.Parallel()
	if redistest.Few() {
		t.Skip("make test-all runs it: it takes minutes")
	}
	const enough = 4000 // seeds; most take fewer than 100
	for _, m := range slices.Concat(mutants, setMutants) {
		t.Run(m.name, func(t *testing.T) {
			var found atomic.Uint64
			seeds(t, 1, enough, func(t *testing.T, seed uint64) bool {
				for _, broken := range simulate(t, seed, m).broken {
					if strings.HasPrefix(broken, m.breaks) {
						found.Store(seed)
					}
				}
				return found.Load() == 0
			})
			if found.Load() == 0 {
				t.Fatalf("survives %d seeds; should break: %s", enough, m.breaks)
			}
			t.Logf("found by seed %d", found.Load())
		})
	}
}
