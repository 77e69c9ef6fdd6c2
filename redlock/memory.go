package redlock

import "time"

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
}

func newMemoryMaster(name string, clock func() time.Time) *memoryMaster {
	return &memoryMaster{name: name, clock: clock}
}

func (m *memoryMaster) String() string { return "memory://" + m.name }

func (m *memoryMaster) Close() error { return nil }

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

func (m *memoryMaster) acquire(cmd *Command, now time.Time) Reply {
	token, ends, held := m.leases.get(cmd.Key, now)
	last, _, _ := m.fences.get(cmd.Key, now)
	switch {
	case !held:
		fence := nextFence(last, cmd.Fence, now.UnixMicro())
		m.leases.set(cmd.Key, cmd.Token, now, cmd.TTL)
		m.fences.set(cmd.Key, fence, now, fenceTTL)
		return Reply{Status: StatusGranted, Fence: fence, Time: now.UnixMicro()}
	case token == cmd.Token: // the command came twice
		return Reply{Status: StatusGranted, Fence: last, Time: now.UnixMicro()}
	}
	return Reply{Status: StatusHeld, Holder: token, TTL: ends.Sub(now), Time: now.UnixMicro()}
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
	token, _, held := m.leases.get(cmd.Key, now)
	switch {
	case !held:
		return Reply{Status: StatusExpired}
	case token != cmd.Token:
		return Reply{Status: StatusNotOwner}
	}
	m.leases.delete(cmd.Key)
	return Reply{Status: StatusReleased}
}

// expiring is a map whose values end. The zero value is empty.
type expiring[V any] struct {
	values  map[string]expiringValue[V]
	sweepAt int // size at which the dead values are removed
}

type expiringValue[V any] struct {
	value V
	ends  time.Time
}

func (e *expiring[V]) get(key string, now time.Time) (value V, ends time.Time, ok bool) {
	v, ok := e.values[key]
	if !ok || !now.Before(v.ends) {
		return value, ends, false
	}
	return v.value, v.ends, true
}

func (e *expiring[V]) set(key string, value V, now time.Time, ttl time.Duration) {
	if e.values == nil {
		e.values = make(map[string]expiringValue[V])
	}
	e.values[key] = expiringValue[V]{value, now.Add(ttl)}
	if len(e.values) < max(e.sweepAt, 1024) {
		return
	}
	for key, v := range e.values {
		if !now.Before(v.ends) {
			delete(e.values, key)
		}
	}
	e.sweepAt = 2 * len(e.values)
}

func (e *expiring[V]) delete(key string) { delete(e.values, key) }
