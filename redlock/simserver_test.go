package redlock

import (
	"errors"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/simnet"
)

// simServer is a server, with all that is to happen to it.
type simServer struct {
	*simnet.Server
	world  *world
	index  int
	skew   time.Duration
	fast   int // how much its clock is fast, in thousandths
	jumpAt time.Duration
	jump   time.Duration
	downs  windows // each ends with a restart, with all forgotten
	hangs  windows
}

func (s *simServer) clock() time.Time {
	now := s.world.now()
	off := s.skew + now*time.Duration(s.fast)/1000
	if s.jump != 0 && now >= s.jumpAt {
		off += s.jump
	}
	return s.world.start.Add(now + off)
}

// live has all happen to the server in its time.
func (s *simServer) live() {
	s.SetTime(s.clock)
	s.Serve(s.serve)
	s.downs.each(s.world, s.Kill, s.Restart)
	s.hangs.each(s.world, s.Hang, s.Resume)
}

// life counts the starts of the server. It is up unless it is within one of downs.
func (s *simServer) life() (epoch int, up bool) {
	now := s.world.now()
	for _, d := range s.downs {
		if d.from <= now {
			epoch++
		}
	}
	return epoch, s.downs.end(now) == now
}

// serve runs a command, and notes what comes of it.
func (s *simServer) serve(from *simnet.Address, m *memory.Master, cmd *protocol.Command) bool {
	w, p := s.world, s.world.routes[from].process
	switch early := w.mutant.ahead; {
	case cmd.Op == protocol.OpPing || cmd.Op == protocol.OpMemory:
		return false
	case cmd.Op == protocol.OpAcquire && cmd.Leads && w.unled.Load():
		cmd.Reply.Err = protocol.Mark(errors.New("WRONGTYPE"), protocol.ErrRefused)
		return true
	case cmd.Op == protocol.OpForce:
		w.forcedAs(cmd.Token, p.named.Load())
	case early != nil && early(cmd):
		again := *cmd
		time.AfterFunc(w.timeout, func() { s.Look(func(m *memory.Master) { m.Do([]*protocol.Command{&again}) }) })
		cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
		return true
	}
	_, _, held := m.Leases.Get(cmd.Key, s.clock())
	if w.mutant.serve == nil || !w.mutant.serve(m, cmd) {
		m.Do([]*protocol.Command{cmd})
	}
	if beat, ok := cmd.Ask.(*protocol.Beat); ok && cmd.Reply.Err == nil {
		w.beats(s, m, p, beat)
	}
	if seen, ok := cmd.Reply.Answer.(*protocol.Inspected); ok {
		w.told(seen.Holder, uint64(seen.Fence))
	}
	w.event("server %d: op %d of process %d (%s), %s %s, ticket %d, queue %t: status %d, fence %d",
		s.index, cmd.Op, p.index, short(cmd.Process), cmd.Key, short(cmd.Token), cmd.Ticket, cmd.Queue, cmd.Reply.Status, max(cmd.Reply.Fence, cmd.Fence))
	if cmd.Op == protocol.OpExtend && cmd.Reply.Status == protocol.StatusGranted && !held {
		w.refilled(s, cmd.Token)
	}
	return true
}

func short(token string) string { return token[max(0, len(token)-4):] }
