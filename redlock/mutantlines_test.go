package redlock

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// lineMutants are about forced releases, wake-ups and the order of those that wait.
var lineMutants = []mutant{
	{
		name: "a forced release is forgotten", breaks: byForce,
		shape: func(w *world) { w.forces = true },
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op != protocol.OpForce {
				return false
			}
			release := *cmd
			release.Op, release.Ask = protocol.OpRelease, nil
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
		name: "a forced release ignores the fence", breaks: exclusion, from: 195,
		shape: func(w *world) { w.forces = true },
		answer: func(_ *route, cmd *protocol.Command) {
			if seen, ok := cmd.Reply.Answer.(*protocol.Inspected); ok {
				seen.Fence = 1
			}
		},
	},
	{
		name: "nobody is woken", breaks: awake, quiet: true,
		hear: func(*route, protocol.WakeUp) bool { return false },
	},
	{
		name: "a wake-up during an attempt is lost", breaks: awake, quiet: true,
		hear: func(l *route, w protocol.WakeUp) bool {
			return !slices.ContainsFunc(l.process.routes, func(l *route) bool { return l.acquiring.Load() > 0 })
		},
	},
	{
		name: "a pass ignores older tickets", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			w.busy(8)
		},
		send: func(_ *route, cmd *protocol.Command) {
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
		send: func(l *route, cmd *protocol.Command) {
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
		send: func(_ *route, cmd *protocol.Command) {
			if cmd.Ticket == protocol.TryTicket {
				cmd.Ticket = 1
			}
		},
	},
	{
		name: "a fast acquire passes those who wait", breaks: inOrder, quiet: true,
		shape: func(w *world) {
			w.keys = 1
			w.busy(3)
		},
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if _, _, held := m.Leases.Get(cmd.Key, m.Clock()); cmd.Fast && !held {
				cmd.Ticket = 1
			}
			cmd.Fast = false
			return false
		},
	},
	{
		name: "a fast acquire takes a key that is held", breaks: exclusion,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Fast {
				m.Leases.Delete(cmd.Key)
				cmd.Fast = false
			}
			return false
		},
	},
	{
		name: "a fast acquire that is refused leaves its token", breaks: allEnds + ": left",
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if !cmd.Fast {
				return false
			}
			if m.Do([]*protocol.Command{cmd}); cmd.Reply.Err != nil {
				if _, _, held := m.Leases.Get(cmd.Key, m.Clock()); !held {
					m.Leases.Set(cmd.Key, cmd.Token+" left", m.Clock(), time.Hour)
				}
			}
			return true
		},
	},
}
