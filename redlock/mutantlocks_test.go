package redlock

import (
	"fmt"
	"math"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// lockMutants are about a lock: how it is taken, renewed and freed.
var lockMutants = []mutant{
	{
		name: "one token for all attempts", breaks: exclusion,
		shape: func(w *world) {
			w.busy(1)
		},
		send: func(l *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire || cmd.Op == protocol.OpExtend || cmd.Op == protocol.OpRelease {
				cmd.Token = fmt.Sprint("of process ", l.process.index)
			}
		},
	},
	{
		name: "each spelling of a key has a lock of its own", breaks: exclusion,
		shape: func(w *world) { w.spelled = true },
		send: func(l *route, cmd *protocol.Command) {
			own := "redlock:{" + cmd.Given + "}"
			if cmd.Given != "" && l.process.world.isKey(cmd.Given[1:]) {
				l.process.memory.Store(cmd.Token+" takes", own)
				cmd.Key = own
			} else if own := l.process.recall(cmd.Token + " takes"); cmd.Op == protocol.OpExtend && own != cmd.Token+" takes" {
				cmd.Key = own
			}
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
		answer: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusGranted, Fence: cmd.Fence}
			}
		},
	},
	{
		name: "a renewal without a reply counts", breaks: exclusion,
		shape: cutOffWhileHolding,
		answer: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpExtend && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusGranted}
			}
		},
	},
	{
		name: "a renewal without a reply counts as the one before", breaks: exclusion, from: 252,
		shape: cutOffWhileHolding,
		answer: func(l *route, cmd *protocol.Command) {
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
		name: "validity is counted from the reply", breaks: exclusion,
		shape: func(w *world) { // replies come late
			w.busy(4)
			for _, p := range w.processes {
				p.pauses = w.windows(8, w.ttl)
			}
		},
		send: func(l *route, cmd *protocol.Command) { // the same as a lease that begins earlier by so long as the reply will take
			now, pauses := l.process.world.now(), l.process.pauses
			there := arrival(arrival(now, pauses)+l.far, l.there)
			cmd.TTL = max(cmd.TTL-(arrival(there+l.far, l.back, pauses)-now), 0)
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
		answer: func(l *route, cmd *protocol.Command) {
			if s := l.process.world.behind(l.address); cmd.Reply.Time > 0 && s.jump != 0 && s.world.now() >= s.jumpAt {
				cmd.Reply.Time -= s.jump.Microseconds()
			}
		},
	},
	{
		name: "refill without a deadline", breaks: noRefill,
		send: func(_ *route, cmd *protocol.Command) {
			if cmd.RefillUntil > 0 {
				cmd.RefillUntil = math.MaxInt64
			}
		},
	},
	{
		name: "a key without a TTL", breaks: allEnds + ": left",
		send: func(_ *route, cmd *protocol.Command) { cmd.TTL *= 1000 },
	},
	{
		name: "releases overtake acquires", breaks: allEnds + ": left",
		ahead: func(cmd *protocol.Command) bool { return cmd.Op == protocol.OpAcquire },
		answer: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire && cmd.Reply.Err != nil {
				cmd.Reply.Err = protocol.Mark(cmd.Reply.Err, protocol.ErrRefused)
			}
		},
	},
	{
		name: "a release that was missed isn't repeated", breaks: allEnds + ": left",
		answer: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpRelease && cmd.Reply.Err != nil {
				cmd.Reply = protocol.Reply{Status: protocol.StatusReleased}
			}
		},
	},
	{
		name: "a plain release that finds no key is enough", breaks: allEnds + ": left",
		answer: func(_ *route, cmd *protocol.Command) {
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
}

// cutOffWhileHolding has each process lose all that it sends for longer than a lease.
func cutOffWhileHolding(w *world) {
	w.keys = 1
	for _, p := range w.processes {
		at := between(w.random, w.faults.from, w.faults.to)
		for _, l := range p.routes {
			l.drops = windows{{at, at + 2*w.ttl}}
		}
	}
}
