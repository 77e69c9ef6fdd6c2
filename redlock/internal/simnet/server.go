package simnet

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// Server is a Redis server in memory. Its methods may be called at any time. A key given to a method is a lock key of the default prefix.
type Server struct {
	index     int
	hangs     valve
	addresses sync.Map // the addresses that lead, or have led, to the server

	mu     sync.Mutex
	up     bool
	run    int
	began  time.Time        // when the present run began, by the server's clock
	clock  func() time.Time // called while mu is held
	memory *memory.Master
	hears  map[string]*conn // the subscriptions, by channel
	conns  map[*conn]bool
	info   protocol.Server
	refuse func(*protocol.Command) error
	serve  func(from *Address, m *memory.Master, cmd *Command) bool
	calls  [protocol.Ops]int
	asked  *conn // the connection of the last acquire
}

func newServer(index int) *Server {
	return &Server{index: index, clock: time.Now, conns: make(map[*conn]bool), info: protocol.Server{
		Role: "master", Mode: "standalone", HasUptime: true, Version: "7.4.0", Memory: protocol.Memory{Used: 1 << 20, Policy: "noeviction"},
	}}
}

func (s *Server) String() string { return fmt.Sprint("server ", s.index) }

// start begins a run, with an empty memory. Callers hold mu, unless nobody else has the server.
func (s *Server) start(began time.Time) {
	s.run, s.up, s.began, s.hears = s.run+1, true, began, make(map[string]*conn)
	if s.forget(); s.run == 1 && began.Before(s.clock()) { // the server has been up for a day, so processes have used it since then
		s.memory.Processes = memory.Processes{Born: began.UnixMicro(), Told: make(map[string]memory.Told)}
	}
}

func (s *Server) forget() {
	s.memory = memory.New(fmt.Sprint(s.index), func() time.Time { return s.clock() })
	for channel, c := range s.hears {
		s.memory.Subscribe(channel, c.hear)
	}
}

func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Kill ends the server, as kill -9 does, even while it hangs. The server forgets everything, and its connections end.
func (s *Server) Kill() {
	s.change(func() {
		s.up = false
		for c := range s.conns {
			c.Close()
		}
		clear(s.conns)
	})
	s.hangs.set(true)
}

// Restart starts the server again, without any data.
func (s *Server) Restart() {
	s.change(func() {
		if !s.up {
			s.start(s.clock())
		}
	})
}

// Reboot is Kill and Restart.
func (s *Server) Reboot() { s.Kill(); s.Restart() }

// Hang makes the server do nothing until Resume, as SIGSTOP does: it still accepts connections, and reads later what was sent.
func (s *Server) Hang() { s.hangs.set(false) }

// Resume ends Hang.
func (s *Server) Resume() { s.hangs.set(true) }

// Flush is FLUSHALL: all keys are gone, and connections and subscriptions stay.
func (s *Server) Flush() { s.change(s.forget) }

// SetClock sets the server's clock ahead of ours by this much.
func (s *Server) SetClock(ahead time.Duration) {
	s.SetTime(func() time.Time { return time.Now().Add(ahead) })
}

// SetSpeed makes the server's clock gain on ours from now on, by this many thousandths of the elapsed time.
func (s *Server) SetSpeed(permille int) {
	s.mu.Lock()
	since, ahead := time.Now(), time.Until(s.clock())
	s.mu.Unlock()
	s.SetTime(func() time.Time {
		now := time.Now()
		return now.Add(ahead + now.Sub(since)*time.Duration(permille)/1000)
	})
}

// SetTime makes clock the server's clock.
func (s *Server) SetTime(clock func() time.Time) { s.change(func() { s.clock = clock }) }

// SetInfo changes the server's description of itself, such as its version, role and memory. If the description is empty, the server denies INFO.
func (s *Server) SetInfo(set func(info *Info)) { s.change(func() { set(&s.info) }) }

// Info is the server's description of itself. The server itself sets the run ID, the uptime and the time.
type Info = protocol.Server

// Refuse makes the server answer these commands, or all commands if none are given, with an error of Redis, such as "OOM command not allowed when
// used memory > 'maxmemory'."; an empty text ends that.
func (s *Server) Refuse(text string, ops ...Op) {
	err := redis.ErrorOf(text)
	s.change(func() {
		s.refuse = func(cmd *protocol.Command) error {
			if text == "" || len(ops) > 0 && !slices.Contains(ops, cmd.Op) {
				return nil
			}
			return err
		}
	})
}

// Fill fills the server's memory, with maxmemory-policy noeviction. The server refuses all commands that may need more memory, but still renews and
// releases. Refuse with an empty text ends that.
func (s *Server) Fill() {
	s.SetInfo(func(info *Info) { info.Memory.Max = 1 })
	s.Refuse("OOM command not allowed when used memory > 'maxmemory'.", Acquire, Beat, Force, Trial, Store)
}

// writes are the operations that change keys.
var writes = []Op{Acquire, Extend, Release, Beat, Force, Trial, Store}

// Demote makes the server a replica of an empty server. It keeps its run and its connections, loses its keys, and refuses to write.
func (s *Server) Demote() {
	s.Refuse("READONLY You can't write against a read only replica.", writes...)
	s.SetInfo(func(info *Info) { info.Role = "slave" })
	s.Flush()
}

// Promote makes a replica a master again. It has no keys, because its former master had none.
func (s *Server) Promote() {
	s.Refuse("")
	s.SetInfo(func(info *Info) { info.Role = "master" })
}

// Forge makes the server misbehave: it doesn't execute a command for which forge returns true after it has set the reply. nil ends that.
func (s *Server) Forge(forge func(cmd *Command) bool) {
	if forge == nil {
		s.Serve(nil)
		return
	}
	s.Serve(func(_ *Address, _ *memory.Master, cmd *Command) bool { return forge(cmd) })
}

// Serve is Forge for a function that also gets the address from which a command comes, and the server's data.
func (s *Server) Serve(serve func(from *Address, m *memory.Master, cmd *Command) bool) {
	s.change(func() { s.serve = serve })
}

// Look calls a function with the server's data.
func (s *Server) Look(look func(m *memory.Master)) { s.change(func() { look(s.memory) }) }

// Command is one operation, with its reply.
type Command = protocol.Command

// Give gives a key, or slots of it, to a token, whoever has it. The fence stays.
func (s *Server) Give(key, token string, ttl time.Duration, slots ...int) {
	if len(slots) == 0 {
		slots = []int{0}
	}
	s.change(func() {
		for _, slot := range slots {
			s.memory.Leases.Set(protocol.SlotKey(full(key), slot), token, s.clock(), ttl)
		}
	})
}

// Holder returns the token that a key carries, or "".
func (s *Server) Holder(key string) (token string) {
	s.change(func() { token, _, _ = s.memory.Leases.Get(full(key), s.clock()) })
	return token
}

// Fence returns the fence that is remembered for a key, or 0.
func (s *Server) Fence(key string) (fence int64) {
	s.change(func() { fence, _, _ = s.memory.Fences.Get(full(key), s.clock()) })
	return fence
}

// SetFence replaces the fence that the server remembers for a key; 0 removes it.
func (s *Server) SetFence(key string, fence uint64) {
	s.change(func() {
		if s.memory.Fences.Delete(full(key)); fence > 0 {
			s.memory.Fences.Set(full(key), int64(fence), s.clock(), time.Hour)
		}
	})
}

// Delete is DEL for the list of a slot's holder: it removes the token and the fence.
func (s *Server) Delete(key string, slot int) {
	s.change(func() {
		held := protocol.SlotKey(full(key), slot)
		s.memory.Leases.Delete(held)
		if _, _, beside := s.memory.Beside.Get(held, s.clock()); !beside {
			s.memory.Fences.Delete(held)
		}
	})
}

// Leads reports whether the server offers the slots of a key.
func (s *Server) Leads(key string) (leads bool) {
	s.change(func() { _, _, leads = s.memory.Slots.Get(full(key), s.clock()) })
	return leads
}

// Result returns the result that is remembered for a key, or "".
func (s *Server) Result(key string) (data string) {
	s.change(func() {
		r, _, _ := s.memory.Results.Get(resultOf(key), s.clock())
		data = r.Data
	})
	return data
}

// SetResult replaces the result that the server remembers for a key; if keep is 0, it removes the result.
func (s *Server) SetResult(key, data string, fence uint64, keep time.Duration) {
	s.change(func() {
		s.memory.Results.Set(resultOf(key), protocol.Result{Data: data, Fence: int64(fence), Keep: keep}, s.clock(), keep)
	})
}

func full(key string) string { return protocol.Key("redlock", key) }

func resultOf(key string) string {
	return (&protocol.Command{Key: full(key), Given: protocol.Given(key)}).ResultOf()
}

// Keys returns the keys that are held, and the keys that are waited for, with ":queue" appended. It returns none if the server is down.
func (s *Server) Keys() (keys []string) {
	s.change(func() {
		if !s.up {
			return
		}
		for key := range s.memory.Leases.All(s.clock()) {
			keys = append(keys, key)
		}
		for key, q := range s.memory.Queues.All(s.clock()) {
			if q.Oldest("", 0, s.clock()) != nil {
				keys = append(keys, key+":queue")
			}
		}
	})
	slices.Sort(keys)
	return keys
}

// Calls returns how many commands of these kinds, or of all kinds if none are given, the server has received since the test began.
func (s *Server) Calls(ops ...Op) (n int) {
	s.change(func() {
		for op, calls := range s.calls {
			if len(ops) == 0 || slices.Contains(ops, Op(op)) {
				n += calls
			}
		}
	})
	return n
}

// Processes returns how many processes the server remembers.
func (s *Server) Processes() (n int) {
	s.change(func() { n = len(s.memory.Processes.Told) })
	return n
}

// Asked returns a value that identifies the connection of the last acquire.
func (s *Server) Asked() (connection any) {
	s.change(func() { connection = s.asked })
	return connection
}

// Connections returns how many open connections the server has.
func (s *Server) Connections() (n int) {
	s.change(func() {
		for c := range s.conns {
			if !c.ended() {
				n++
			}
		}
	})
	return n
}

// Op is a kind of commands.
type Op = protocol.Op

// The kinds of commands.
const (
	Ping    = protocol.OpPing
	Acquire = protocol.OpAcquire
	Extend  = protocol.OpExtend
	Release = protocol.OpRelease
	Beat    = protocol.OpBeat
	Inspect = protocol.OpInspect
	Force   = protocol.OpForce
	Trial   = protocol.OpTrial
	Names   = protocol.OpNames
	Recall  = protocol.OpRecall
	Store   = protocol.OpStore
	Memory  = protocol.OpMemory
)

func (s *Server) greeting(c *conn) (told protocol.Server, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told = s.info
	if told.Time = s.clock().UnixMicro(); told.HasUptime {
		told.RunID = fmt.Sprintf("run-%d-of-server-%d", s.run, s.index)
		told.Uptime = time.Duration(s.clock().Unix()-s.began.Unix()) * time.Second
	}
	told.Past = s.memory.Processes.Greet(told.Time)
	return told, s.up && c.run == s.run
}

func (s *Server) accept(c *conn) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for old := range s.conns {
		if old.ended() {
			delete(s.conns, old)
		}
	}
	c.server, c.run = s, s.run
	s.conns[c] = s.up
	if !s.up {
		delete(s.conns, c)
	}
	return s.up
}

// execute runs commands that came over a connection, unless the connection was made to an earlier run.
func (s *Server) execute(c *conn, cmds []protocol.Command) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up || c.run != s.run {
		return false
	}
	if c.address.denied.Load() {
		defer s.mute()()
	}
	for i := range cmds {
		if cmds[i].Op == protocol.OpAcquire {
			s.asked = c
		}
		s.do(c.address, &cmds[i])
	}
	return true
}

// mute stops messages until restore is called: a waiting process keeps its place in the queue, but gets no message. Callers hold mu.
func (s *Server) mute() (restore func()) {
	muted := make(map[string]bool)
	for _, q := range s.memory.Queues.All(s.clock()) {
		for _, place := range q.Places {
			process, _ := protocol.CallOf(place.Process)
			muted[process] = true
			s.memory.Subscribe(process, func(protocol.WakeUp) {})
		}
	}
	return func() {
		for process := range muted {
			if c := s.hears[process]; c != nil {
				s.memory.Subscribe(process, c.hear)
			} else {
				s.memory.Subscribe(process, nil)
			}
		}
	}
}

func (s *Server) do(from *Address, cmd *Command) {
	s.calls[cmd.Op]++
	if s.refuse != nil {
		if err := s.refuse(cmd); err != nil {
			cmd.Reply = protocol.Reply{Err: err}
			return
		}
	}
	switch {
	case s.serve != nil && s.serve(from, s.memory, cmd):
	case cmd.Op == Memory:
		told := s.info.Memory
		cmd.Reply = protocol.Reply{Answer: &told}
	default:
		s.memory.Do([]*protocol.Command{cmd})
	}
}

func (s *Server) subscribe(c *conn, channel string) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up || c.run != s.run {
		return false
	}
	s.hears[channel] = c
	s.memory.Subscribe(channel, c.hear)
	return true
}

// unsubscribe ends a subscription. If the connection was forgotten, the server can't notice its end, and keeps the subscription.
func (s *Server) unsubscribe(c *conn, channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hears[channel] == c && !c.forgotten.Load() {
		delete(s.hears, channel)
		s.memory.Subscribe(channel, nil)
	}
}
