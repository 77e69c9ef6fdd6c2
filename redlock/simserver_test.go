package redlock

import (
	"fmt"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// simServer is a server, with the memory master's state and a clock of its own.
type simServer struct {
	world  *world
	index  int
	mutant mutant
	skew   time.Duration
	fast   int // how much its clock is fast, in thousandths
	jumpAt time.Duration
	jump   time.Duration
	downs  windows // each ends with a restart, with all forgotten
	hangs  windows

	mu     sync.Mutex
	memory *memory.Master
	epoch  int
	mute   bool // who is served now may not publish
}

func (s *simServer) clock() time.Time { return s.clockAt(s.world.now()) }

func (s *simServer) clockAt(now time.Duration) time.Time {
	off := s.skew + now*time.Duration(s.fast)/1000
	if s.jump != 0 && now >= s.jumpAt {
		off += s.jump
	}
	return s.world.start.Add(now + off)
}

// greeting is what the server of this epoch tells of itself. Its uptime is what its clock makes of it.
func (s *simServer) greeting(epoch int) protocol.Server {
	_, _, uptime := s.life()
	now := s.clock()
	started := s.clockAt(s.world.now() - uptime)
	return protocol.Server{
		RunID: fmt.Sprint(s.index, ".", epoch), Role: "master", HasUptime: true,
		Uptime: time.Duration(now.Unix()-started.Unix()) * time.Second, Time: now.UnixMicro(),
	}
}

// life counts the starts of the server. It is up unless it is within one of downs.
func (s *simServer) life() (epoch int, up bool, uptime time.Duration) {
	now, since := s.world.now(), -time.Hour
	for _, d := range s.downs {
		if d.from <= now {
			epoch, since = epoch+1, max(since, d.to)
		}
	}
	return epoch, s.downs.end(now) == now && now >= since, now - since
}

// lives says whether the server is the one of this epoch, which has all that came since it started.
func (s *simServer) lives(epoch int) bool {
	if now, up, _ := s.life(); !up || now != epoch {
		return false
	}
	if s.memory == nil || s.epoch != epoch {
		s.memory, s.epoch = memory.New(fmt.Sprint(s.index), s.clock), epoch
	}
	return true
}

// at gives the state of the server of this epoch, or nil if that has ended.
func (s *simServer) at(epoch int) *memory.Master {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lives(epoch) {
		return nil
	}
	return s.memory
}

// execute runs commands that came over a connection of this epoch. It is false if that has ended.
func (s *simServer) execute(from *route, cmds []protocol.Command, epoch int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lives(epoch) {
		return false
	}
	s.mute = from.process.noPubSub && !s.world.eternal // before it has waited itself it doesn't know, and nobody polls for its lock
	for i := range cmds {
		cmd := &cmds[i]
		if cmd.Op == protocol.OpForce {
			s.world.forcedAs(cmd.Token, from.process.named.Load())
		}
		_, _, held := s.memory.Leases.Get(cmd.Key, s.clock())
		if s.mutant.serve == nil || !s.mutant.serve(s.memory, cmd) {
			s.memory.Do([]*protocol.Command{cmd})
		}
		if beat, ok := cmd.Ask.(*protocol.Beat); ok && cmd.Reply.Err == nil {
			s.world.beats(s, from.process, beat)
		}
		if seen, ok := cmd.Reply.Answer.(*protocol.Inspected); ok {
			s.world.told(seen.Holder, uint64(seen.Fence))
		}
		if cmd.Op != protocol.OpPing {
			s.world.event("server %d: op %d of process %d (%s), %s %s, ticket %d, queue %t: status %d, fence %d",
				s.index, cmd.Op, from.process.index, short(cmd.Process), cmd.Key, short(cmd.Token), cmd.Ticket, cmd.Queue, cmd.Reply.Status, max(cmd.Reply.Fence, cmd.Fence))
		}
		if cmd.Op == protocol.OpExtend && cmd.Reply.Status == protocol.StatusGranted && !held {
			s.world.refilled(s, cmd.Token)
		}
	}
	return true
}

// keys lists the keys that are locked on the server now, and the tickets that wait for one.
func (s *simServer) keys() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch, up, _ := s.life(); s.memory == nil || !up || epoch != s.epoch {
		return nil
	}
	for key, token := range s.memory.Leases.All(s.clock()) {
		keys = append(keys, fmt.Sprintf("%s %s on server %d", key, short(token), s.index))
	}
	for key, q := range s.memory.Queues.All(s.clock()) {
		if first := q.Oldest("", 0, s.clock()); first != nil {
			keys = append(keys, fmt.Sprintf("%s ticket of %s on server %d", key, short(first.Process), s.index))
		}
	}
	return keys
}

func short(token string) string { return token[max(0, len(token)-4):] }
