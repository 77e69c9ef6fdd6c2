// Package memory is a master in the memory of this process, for a single process and for tests. It specifies the behavior of the scripts of package
// redis.
package memory

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Master does the same as the Redis scripts. Its fields are exported for tests: some compare the scripts with it, and others change its data.
type Master struct {
	Clock   func() time.Time
	Leases  Expiring[string] // the token that holds each key
	Fences  Expiring[int64]
	Beside  Expiring[bool]   // keys whose fence is remembered for longer than the lease
	Plain   Expiring[string] // the holder's token, for keys for which no process has waited; a release with Alone frees only these
	Queues  Expiring[*Queue]
	Slots   Expiring[Slots]           // by key; only for keys with several holders that this master leads
	Offers  Expiring[Offer]           // by the name of the call
	Results Expiring[protocol.Result] // by what they belong to: see Command.ResultOf
	Forced  Expiring[string]          // by key and token: the operator who has released the token with OpForce

	Processes Processes

	name string

	doing sync.Mutex // held by Do, because several Lockers may have the master
	said  []func()   // the messages of the running Do, which it delivers at its end: a listener may ask the master for something

	mu        sync.Mutex
	listeners map[string]func(protocol.WakeUp) // by process
}

func New(name string, clock func() time.Time) *Master {
	return &Master{Clock: clock, name: name}
}

// Steady returns a clock that starts with the present time of now, and then follows only now's monotonic reading. So a master in memory keeps its
// vote when somebody sets our wall clock.
func Steady(now func() time.Time) func() time.Time {
	began := now()
	return func() time.Time { return began.Add(now().Sub(began)) }
}

func (m *Master) String() string { return "memory://" + m.name }

func (m *Master) Close() error { return nil }

// Capabilities returns that the master is in the memory of this process.
func (m *Master) Capabilities() protocol.Capabilities { return protocol.Capabilities{Local: true} }

func (m *Master) Connect(context.Context, protocol.Admission) (protocol.Conn, error) {
	return protocol.NewImmediate(m.Do), nil
}

// Do executes commands. Several goroutines may call it at once.
func (m *Master) Do(cmds []*protocol.Command) {
	m.doing.Lock()
	m.execute(cmds)
	said := m.said
	m.said = nil
	m.doing.Unlock()
	for _, say := range said {
		say()
	}
}

func (m *Master) execute(cmds []*protocol.Command) {
	for _, cmd := range cmds {
		now := m.Clock()
		switch cmd.Op {
		case protocol.OpPing:
			cmd.Reply = protocol.Reply{Time: now.UnixMicro()}
		case protocol.OpAcquire:
			cmd.Reply = m.acquire(cmd, now)
		case protocol.OpExtend:
			cmd.Reply = m.extend(cmd, now)
		case protocol.OpRelease:
			cmd.Reply = m.release(cmd, now)
		case protocol.OpBeat:
			cmd.Reply = m.Processes.Beat(cmd.Ask.(*protocol.Beat), now.UnixMicro())
		case protocol.OpForce:
			m.Forced.Set(cmd.Key+cmd.Token, cmd.Ask.(*protocol.Force).By, now, cmd.TTL)
			cmd.Reply = m.release(cmd, now)
		case protocol.OpInspect:
			cmd.Reply = m.inspect(cmd, now)
		case protocol.OpNames:
			cmd.Reply = m.Processes.names(cmd.Ask.(*protocol.Names), now.UnixMicro())
		case protocol.OpRecall:
			cmd.Reply = m.recall(cmd, now)
		case protocol.OpStore:
			cmd.Reply = m.store(cmd, now)
		}
	}
}

func lineOf(cmd *protocol.Command) string {
	line, _ := protocol.SlotOf(cmd.Key)
	return line
}

func (m *Master) acquire(cmd *protocol.Command, now time.Time) (reply protocol.Reply) {
	defer func() { reply.Time = now.UnixMicro() }()
	if cmd.Former != "" {
		reply.Former = m.free(cmd.Key, cmd.Former, now)
	}
	if cmd.Recall {
		if done, ends, known := m.Results.Get(cmd.ResultOf(), now); known {
			reply.Status, reply.Fence, reply.TTL = protocol.StatusDone, done.Fence, ends.Sub(now)
			if len(done.Data) <= protocol.ShortResult {
				done.Keep = reply.TTL
				reply.Answer = &done
			}
			return reply
		}
	}
	token, ends, held := m.Leases.Get(cmd.Key, now)
	last, _, _ := m.Fences.Get(cmd.Key, now)
	q, _, waiters := m.Queues.Get(lineOf(cmd), now)
	if cmd.Fast && (held || waiters && len(q.Places) > 0 || !m.fits(cmd, last, now)) {
		reply.Err = protocol.ErrUndecided
		return reply
	}
	if held && token == cmd.Token { // the command has come twice
		reply.Status, reply.Fence = protocol.StatusGranted, last
		return reply
	}
	_, slot := protocol.SlotOf(cmd.Key)
	several := cmd.Slots > 1
	if reply.Former == protocol.StatusReleased {
		m.slots(cmd, now).note(slot, time.UnixMicro(0))
	}
	alone := !several && (!waiters || len(q.Places) == 0)
	for !held && waiters && !cmd.Offered {
		first := q.Oldest(cmd.Process, slot, now)
		if first == nil || !first.before(cmd.Ticket, cmd.Process) {
			break
		}
		if held = several || m.wake(cmd.Key, q, *first); held {
			ends = first.Ends
		}
	}
	if taken := m.slots(cmd, now)[slot]; !held && !cmd.Offered && !cmd.Fast && taken > now.UnixMicro() && taken <= now.Add(protocol.OfferTime).UnixMicro() {
		if own, has := m.offered(cmd, now); !has || own != slot { // the leader has offered the slot to another call
			held, ends = true, time.UnixMicro(taken)
		}
	}
	if held {
		reply.Status, reply.Holder, reply.TTL = protocol.StatusHeld, token, ends.Sub(now)
		m.refuse(cmd, &reply, now)
		return reply
	}
	if waiters && !several {
		q.leave(cmd.Process, math.MaxInt64)
	}
	reply.Status, reply.Fence = protocol.StatusGranted, protocol.NextFence(last, cmd.Fence, now.UnixMicro())
	m.Leases.Set(cmd.Key, cmd.Token, now, cmd.TTL)
	m.Plain.Delete(cmd.Key)
	if alone {
		m.Plain.Set(cmd.Key, cmd.Token, now, time.Hour)
		reply.Alone = cmd.Former == "" && reply.Fence == cmd.Fence
	}
	m.rememberFence(cmd, reply.Fence, now)
	if several {
		m.forgo(cmd, now)
		m.slots(cmd, now).note(slot, now.Add(cmd.TTL))
		if cmd.Leads {
			m.offer(cmd, "", now)
		}
	}
	return reply
}

// refuse puts the command's process into the queue, if the process wants to wait. If this master leads the key's slots, it offers the free ones.
func (m *Master) refuse(cmd *protocol.Command, reply *protocol.Reply, now time.Time) {
	leads, asks := cmd.Leads && cmd.Slots > 1, cmd.Process
	if _, has := m.offered(cmd, now); has && leads && !cmd.Offered {
		asks = ""
	} else if cmd.Queue {
		m.Join(cmd, now)
	}
	if cmd.Slots <= 1 {
		return
	}
	if leads {
		m.watch(cmd, now)
		m.offer(cmd, asks, now)
		if slot, has := m.offered(cmd, now); has {
			reply.Offer = uint16(slot + 1)
		}
		if _, taken := m.slots(cmd, now).first(0); taken > now.UnixMicro() {
			reply.TTL = time.UnixMicro(taken).Sub(now)
		}
	}
	if q, _, waiters := m.Queues.Get(lineOf(cmd), now); waiters {
		reply.Elsewhere = q.elsewhere(cmd.Process, now)
	}
}

// fits reports whether a Fast command may take the key: neither the last fence nor the new one may have to be remembered for longer than the lease.
func (m *Master) fits(cmd *protocol.Command, last int64, now time.Time) bool {
	_, _, beside := m.Beside.Get(cmd.Key, now)
	return !beside && cmd.TTL >= protocol.FenceTTL+protocol.FenceSlack && protocol.FenceLife(protocol.NextFence(last, cmd.Fence, now.UnixMicro()), now.UnixMicro()) <= cmd.TTL
}

// renews reports whether a Fast command need only renew the lease: the key already has the command's fence, which need not be remembered for longer
// than the lease.
func (m *Master) renews(cmd *protocol.Command, now time.Time) bool {
	last, _, known := m.Fences.Get(cmd.Key, now)
	_, _, beside := m.Beside.Get(cmd.Key, now)
	return known && !beside && last == cmd.Fence && protocol.FenceLife(last, now.UnixMicro()) <= cmd.TTL
}

// rememberFence remembers the fence of a lock for at least the lease.
func (m *Master) rememberFence(cmd *protocol.Command, fence int64, now time.Time) {
	life := protocol.FenceLife(fence, now.UnixMicro())
	m.Fences.Set(cmd.Key, fence, now, max(life, cmd.TTL))
	if m.Beside.Delete(cmd.Key); life > cmd.TTL {
		m.Beside.Set(cmd.Key, true, now, life)
	}
}

func (m *Master) extend(cmd *protocol.Command, now time.Time) protocol.Reply {
	token, _, held := m.Leases.Get(cmd.Key, now)
	by, _, forced := m.Forced.Get(cmd.Key+cmd.Token, now)
	switch {
	case cmd.Fast && (forced || !held || token != cmd.Token || !m.renews(cmd, now)):
		return protocol.Reply{Err: protocol.ErrUndecided, Time: now.UnixMicro()}
	case forced:
		return protocol.Reply{Status: protocol.StatusForced, Time: now.UnixMicro(), Answer: &protocol.Force{By: by}}
	case held && token != cmd.Token:
		return protocol.Reply{Status: protocol.StatusNotOwner, Time: now.UnixMicro()}
	case !held && now.UnixMicro() >= cmd.RefillUntil:
		return protocol.Reply{Status: protocol.StatusExpired, Time: now.UnixMicro()}
	}
	m.Leases.Set(cmd.Key, cmd.Token, now, cmd.TTL)
	if !held {
		m.Plain.Delete(cmd.Key) // an extend doesn't know whether a process waits
	}
	last, _, _ := m.Fences.Get(cmd.Key, now)
	m.rememberFence(cmd, max(last, cmd.Fence), now)
	return protocol.Reply{Status: protocol.StatusGranted, Time: now.UnixMicro()}
}

func (m *Master) release(cmd *protocol.Command, now time.Time) protocol.Reply {
	plain, _, _ := m.Plain.Get(cmd.Key, now)
	if cmd.Alone && plain != cmd.Token {
		return protocol.Reply{Status: protocol.StatusExpired}
	}
	holder, _, _ := m.Leases.Get(cmd.Key, now)
	if _, _, known := m.Results.Get(cmd.ResultOf(), now); cmd.Fast && (known || plain != cmd.Token || holder != cmd.Token) {
		return protocol.Reply{Err: protocol.ErrUndecided}
	}
	reply := protocol.Reply{Status: m.free(cmd.Key, cmd.Token, now)}
	if cmd.Alone {
		return reply
	}
	if store, ok := cmd.Ask.(*protocol.Store); ok && (store.Anyway || reply.Status == protocol.StatusReleased) {
		m.remember(cmd, store.Result, now)
	}
	if cmd.Fast {
		return reply
	}
	line, slot := protocol.SlotOf(cmd.Key)
	slots := m.slots(cmd, now)
	q, _, waiters := m.Queues.Get(line, now)
	if !cmd.Queue && cmd.Slots <= 1 && len(slots) == 0 && (!waiters || len(q.Places) == 0) {
		return reply
	}
	switch {
	case cmd.Queue:
		if cmd.Slots > 1 {
			m.forgo(cmd, now)
		}
		m.Join(cmd, now)
	case cmd.Slots > 1 && cmd.Ticket > 0 && (!waiters || !q.has(cmd.Process, cmd.Ticket+1)):
		m.forgo(cmd, now)
	case waiters:
		q.leave(cmd.Process, cmd.Ticket)
	}
	if reply.Status == protocol.StatusReleased {
		slots.note(slot, time.UnixMicro(0))
	}
	if slot == 0 && cmd.Slots <= 1 && reply.Status != protocol.StatusNotOwner {
		m.wakeFirst(cmd, now)
	}
	if cmd.Slots <= 1 || cmd.Leads {
		m.offer(cmd, "", now)
	}
	return reply
}

func (m *Master) inspect(cmd *protocol.Command, now time.Time) protocol.Reply {
	seen := new(protocol.Inspected)
	token, ends, held := m.Leases.Get(cmd.Key, now)
	if held {
		seen.Holder, seen.TTL = token, ends.Sub(now)
	}
	seen.Fence, _, _ = m.Fences.Get(cmd.Key, now)
	if q, _, ok := m.Queues.Get(lineOf(cmd), now); ok {
		seen.Queue = q.lines(now)
	}
	if result, ends, known := m.Results.Get(cmd.ResultOf(), now); known {
		seen.Result = &protocol.Result{Size: len(result.Data), Keep: ends.Sub(now), Fence: result.Fence}
	}
	return protocol.Reply{Time: now.UnixMicro(), Answer: seen}
}

// remember stores a result, unless the key has a result with the same fence or a larger one.
func (m *Master) remember(cmd *protocol.Command, result *protocol.Result, now time.Time) {
	of := cmd.ResultOf()
	if former, _, known := m.Results.Get(of, now); !known || former.Fence < result.Fence {
		m.Results.Set(of, *result, now, result.Keep)
	}
}

func (m *Master) store(cmd *protocol.Command, now time.Time) protocol.Reply {
	store := cmd.Ask.(*protocol.Store)
	holder, _, held := m.Leases.Get(cmd.Key, now)
	switch {
	case store.Anyway, held && holder == cmd.Token:
		m.remember(cmd, store.Result, now)
		return protocol.Reply{Status: protocol.StatusDone}
	case held:
		return protocol.Reply{Status: protocol.StatusNotOwner}
	}
	return protocol.Reply{Status: protocol.StatusExpired}
}

func (m *Master) recall(cmd *protocol.Command, now time.Time) protocol.Reply {
	result, ends, known := m.Results.Get(cmd.ResultOf(), now)
	if !known {
		return protocol.Reply{Status: protocol.StatusExpired, Time: now.UnixMicro()}
	}
	result.Keep = ends.Sub(now)
	return protocol.Reply{Status: protocol.StatusDone, Answer: &result, Time: now.UnixMicro()}
}

func (m *Master) free(key, token string, now time.Time) protocol.Status {
	holder, _, held := m.Leases.Get(key, now)
	switch {
	case !held:
		return protocol.StatusExpired
	case holder != token:
		return protocol.StatusNotOwner
	}
	m.Leases.Delete(key)
	return protocol.StatusReleased
}
