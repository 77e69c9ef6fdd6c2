package redlock

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// mutant is a wrong version of the code, made where the simulation touches it: at its settings, at
// what a process sends and hears, and at what a server does. The zero value changes nothing.
type mutant struct {
	name    string
	breaks  string // the property, as a violation of it begins
	quiet   bool   // only in worlds where all depends on wake-ups
	shape   func(w *world)
	send    func(l *link, cmd *Command)                   // before it is sent
	delayed func(cmds []Command, trip time.Duration)      // before they are sent; they will be under way so long
	answer  func(l *link, cmd *Command)                   // when it is answered
	serve   func(m *memoryMaster, cmd *Command) (ok bool) // in place of the server, if it says so
	ahead   func(cmd *Command) bool                       // the sender doesn't wait for its answer
	hear    func(l *link, w WakeUp) bool                  // whether a wake-up is sent
}

// mutants are what must not go unnoticed. Each is the code without one of its rules.
var mutants = []mutant{
	{
		name: "no restart guard", breaks: exclusion,
		shape: func(w *world) { w.guard = 0 },
	},
	{
		name: "no restart guard, for fences", breaks: fencing,
		shape: func(w *world) { w.guard = 0 },
	},
	{
		name: "no raise of the fence", breaks: fencing,
		send: func(_ *link, cmd *Command) {
			if cmd.Op == OpExtend {
				cmd.Fence = 0 // it succeeds, and stores no fence
			}
		},
	},
	{
		name: "proposals are stored unclamped", breaks: fencing,
		serve: func(m *memoryMaster, cmd *Command) bool {
			_, _, held := m.leases.get(cmd.Key, m.clock())
			if cmd.Op != OpAcquire || held {
				return false
			}
			m.Do([]*Command{cmd})
			cmd.Reply.Fence = max(cmd.Reply.Fence, cmd.Fence)
			m.fences.set(cmd.Key, cmd.Reply.Fence, m.clock(), fenceTTL)
			return true
		},
	},
	{
		name: "fences follow the clock, not the last fence", breaks: fencing,
		serve: func(m *memoryMaster, cmd *Command) bool {
			m.fences.delete(cmd.Key)
			return false
		},
	},
	{
		name: "one token for all attempts", breaks: exclusion,
		shape: func(w *world) {
			for _, p := range w.processes {
				p.clients = 1
			}
		},
		send: func(l *link, cmd *Command) {
			if cmd.Op != OpPing {
				terms := strings.TrimRight(cmd.Token, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
				cmd.Token = fmt.Sprint(terms, "of process ", l.process.index)
			}
		},
	},
	{
		name: "release deletes whatever token is there", breaks: exclusion,
		serve: func(m *memoryMaster, cmd *Command) bool {
			if cmd.Op != OpRelease {
				return false
			}
			m.leases.delete(cmd.Key)
			cmd.Reply = Reply{Status: StatusReleased}
			return true
		},
	},
	{
		name: "an unreachable master isn't counted in the quorum", breaks: exclusion,
		answer: func(_ *link, cmd *Command) {
			if cmd.Op == OpAcquire && cmd.Reply.Err != nil {
				cmd.Reply = Reply{Status: StatusGranted, Fence: cmd.Fence}
			}
		},
	},
	{
		name: "a renewal without an answer counts", breaks: exclusion,
		answer: func(_ *link, cmd *Command) {
			if cmd.Op == OpExtend && cmd.Reply.Err != nil {
				cmd.Reply = Reply{Status: StatusGranted}
			}
		},
	},
	{
		name: "validity is counted from the answer", breaks: exclusion,
		shape: func(w *world) { // answers come late
			for _, p := range w.processes {
				p.pauses = w.windows(8, w.ttl)
			}
		},
		delayed: func(cmds []Command, trip time.Duration) {
			for i := range cmds { // the same as leases that begin so much earlier
				cmds[i].TTL = max(cmds[i].TTL-trip, 0)
			}
		},
	},
	{
		name: "jumps of a master's clock go unseen", breaks: exclusion,
		answer: func(l *link, cmd *Command) {
			if s := l.server; cmd.Reply.Time > 0 && s.jump != 0 && s.world.now() >= s.jumpAt {
				cmd.Reply.Time -= s.jump.Microseconds()
			}
		},
	},
	{
		name: "refill without a deadline", breaks: noRefill,
		send: func(_ *link, cmd *Command) {
			if cmd.RefillUntil > 0 {
				cmd.RefillUntil = math.MaxInt64
			}
		},
	},
	{
		name: "a key without a TTL", breaks: allEnds + ": left",
		send: func(_ *link, cmd *Command) { cmd.TTL *= 1000 },
	},
	{
		name: "releases overtake acquires", breaks: allEnds + ": left",
		ahead: func(cmd *Command) bool { return cmd.Op == OpAcquire },
		answer: func(_ *link, cmd *Command) {
			if cmd.Op == OpAcquire && cmd.Reply.Err != nil {
				cmd.Reply.Err = marked{cmd.Reply.Err, errRefused}
			}
		},
	},
	{
		name: "a release that was missed isn't repeated", breaks: allEnds + ": left",
		answer: func(_ *link, cmd *Command) {
			if cmd.Op == OpRelease && cmd.Reply.Err != nil {
				cmd.Reply = Reply{Status: StatusReleased}
			}
		},
	},
	{
		name: "tickets without a lease", breaks: allEnds + ": process",
		shape: func(w *world) { // a process dies unnoticed while it waits
			w.processes[0].dies, w.processes[0].halfOpen = between(w.random, w.faults.from, w.faults.to), true
		},
		serve: func(m *memoryMaster, cmd *Command) bool {
			m.Do([]*Command{cmd})
			if q, _, ok := m.queues.get(cmd.Key, m.clock()); ok {
				for i := range q.places {
					q.places[i].ends = m.clock().Add(time.Hour)
				}
				m.queues.set(cmd.Key, q, m.clock(), time.Hour)
			}
			return true
		},
	},
	{
		name: "nobody is woken", breaks: awake, quiet: true,
		hear: func(*link, WakeUp) bool { return false },
	},
	{
		name: "a wake-up during an attempt is lost", breaks: awake, quiet: true,
		hear: func(l *link, w WakeUp) bool {
			return !slices.ContainsFunc(l.process.links, func(l *link) bool { return l.acquiring.Load() })
		},
	},
	{
		name: "a pass ignores older tickets", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			for _, p := range w.processes {
				p.clients = 8
			}
		},
		send: func(_ *link, cmd *Command) {
			if cmd.Former != "" {
				cmd.Ticket = 1
			}
		},
	},
	{
		name: "a try-lock jumps the queue", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			w.keys = 1
			for _, p := range w.processes {
				p.clients = 2
			}
		},
		send: func(_ *link, cmd *Command) {
			if cmd.Ticket == TryTicket {
				cmd.Ticket = 1
			}
		},
	},
}

// TestMutants: the simulation finds each of them. A property that no mutant breaks is not tested.
func TestMutants(t *testing.T) {
	const enough = 4000 // seeds; most take fewer than 100
	for _, m := range mutants {
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
