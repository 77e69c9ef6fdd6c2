package redlock

import (
	"context"
	"math"
	"sync"
	"time"
)

// NewMemoryMaster gives a master in this process's own memory: for a single process, and for tests.
// Its locks are seen only by the Locker that owns it. Dial makes one of "memory://" or, where there
// are several, of "memory://NAME".
func NewMemoryMaster(name string) Master {
	return newMemoryMaster(name, time.Now)
}

// memoryMaster does what the Redis scripts do, and is their specification.
type memoryMaster struct {
	name   string
	clock  func() time.Time
	leases expiring[string] // tokens, by key
	fences expiring[int64]
	queues expiring[*queue]

	mu        sync.Mutex
	listeners map[string]func(WakeUp) // by process
}

func newMemoryMaster(name string, clock func() time.Time) *memoryMaster {
	return &memoryMaster{name: name, clock: clock}
}

func (m *memoryMaster) String() string { return "memory://" + m.name }

func (m *memoryMaster) Close() error { return nil }

// Listen never misses a message.
func (m *memoryMaster) Listen(ctx context.Context, process string, ready func(), message func(WakeUp)) error {
	m.mu.Lock()
	if m.listeners == nil {
		m.listeners = make(map[string]func(WakeUp))
	}
	m.listeners[process] = message
	m.mu.Unlock()
	ready()
	<-ctx.Done()
	m.mu.Lock()
	delete(m.listeners, process)
	m.mu.Unlock()
	return context.Cause(ctx)
}

// publish tells a process that a key is free, and says whether it listens.
func (m *memoryMaster) publish(process string, w WakeUp) bool {
	m.mu.Lock()
	message := m.listeners[process]
	m.mu.Unlock()
	if message == nil {
		return false
	}
	message(w)
	return true
}

func (m *memoryMaster) Do(cmds []*Command) {
	for _, cmd := range cmds {
		now := m.clock()
		switch cmd.Op {
		case OpAcquire:
			cmd.Reply = m.acquire(cmd, now)
		case OpExtend:
			cmd.Reply = m.extend(cmd, now)
		case OpRelease:
			cmd.Reply = m.release(cmd, now)
		}
	}
}

func (m *memoryMaster) acquire(cmd *Command, now time.Time) (reply Reply) {
	defer func() { reply.Time = now.UnixMicro() }()
	if cmd.Former != "" {
		reply.Former = m.free(cmd.Key, cmd.Former, now)
	}
	token, ends, held := m.leases.get(cmd.Key, now)
	last, _, _ := m.fences.get(cmd.Key, now)
	if held && token == cmd.Token { // the command came twice
		reply.Status, reply.Fence = StatusGranted, last
		return reply
	}
	q, _, waiters := m.queues.get(cmd.Key, now)
	for !held && waiters {
		first := q.oldest(cmd.Process, now)
		if first == nil || !first.before(cmd.Ticket, cmd.Process) {
			q.leave(cmd.Process, math.MaxInt64)
			break
		}
		if held = m.wake(cmd.Key, q, *first); held {
			ends = first.ends
		}
	}
	if !held {
		reply.Status, reply.Fence = StatusGranted, nextFence(last, cmd.Fence, now.UnixMicro())
		m.leases.set(cmd.Key, cmd.Token, now, cmd.TTL)
		m.fences.set(cmd.Key, reply.Fence, now, fenceTTL)
		return reply
	}
	reply.Status, reply.Holder, reply.TTL = StatusHeld, token, ends.Sub(now)
	if cmd.Queue {
		m.join(cmd, now)
	}
	return reply
}

func (m *memoryMaster) extend(cmd *Command, now time.Time) Reply {
	token, _, held := m.leases.get(cmd.Key, now)
	switch {
	case held && token != cmd.Token:
		return Reply{Status: StatusNotOwner, Time: now.UnixMicro()}
	case !held && now.UnixMicro() >= cmd.RefillUntil:
		return Reply{Status: StatusExpired, Time: now.UnixMicro()}
	}
	m.leases.set(cmd.Key, cmd.Token, now, cmd.TTL)
	if last, _, _ := m.fences.get(cmd.Key, now); cmd.Fence > last {
		m.fences.set(cmd.Key, cmd.Fence, now, fenceTTL)
	}
	return Reply{Status: StatusGranted, Time: now.UnixMicro()}
}

func (m *memoryMaster) release(cmd *Command, now time.Time) Reply {
	reply := Reply{Status: m.free(cmd.Key, cmd.Token, now)}
	q, _, waiters := m.queues.get(cmd.Key, now)
	switch {
	case cmd.Queue:
		q = m.join(cmd, now)
	case waiters:
		q.leave(cmd.Process, cmd.Ticket)
	}
	for reply.Status != StatusNotOwner && q != nil {
		first := q.oldest("", now)
		if first == nil || first.process == cmd.Process || m.wake(cmd.Key, q, *first) { // nobody wakes himself
			break
		}
	}
	return reply
}

// free deletes a key that carries this token, and says what became of it.
func (m *memoryMaster) free(key, token string, now time.Time) Status {
	holder, _, held := m.leases.get(key, now)
	switch {
	case !held:
		return StatusExpired
	case holder != token:
		return StatusNotOwner
	}
	m.leases.delete(key)
	return StatusReleased
}

func (m *memoryMaster) join(cmd *Command, now time.Time) *queue {
	q, ends, ok := m.queues.get(cmd.Key, now)
	if !ok {
		q = &queue{}
	}
	q.join(place{cmd.Process, cmd.Ticket, now.Add(cmd.TTL)})
	m.queues.set(cmd.Key, q, now, max(cmd.TTL, ends.Sub(now)))
	return q
}

// wake tells the process at this place that the key is free, or takes it off if it doesn't listen any more.
func (m *memoryMaster) wake(key string, q *queue, p place) bool {
	if m.publish(p.process, WakeUp{key, p.ticket}) {
		return true
	}
	q.leave(p.process, math.MaxInt64)
	return false
}
