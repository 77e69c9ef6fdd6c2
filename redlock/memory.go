package redlock

import "time"

// NewMemoryMaster gives a master in this process's own memory: for a single process, and for tests.
// Its locks are seen only by the Locker that owns it. Dial makes one of "memory://" or, where there
// are several, of "memory://NAME".
func NewMemoryMaster(name string) Master {
	return &memoryMaster{name: name, leases: make(map[string]lease)}
}

type memoryMaster struct {
	name    string
	leases  map[string]lease
	sweepAt int // leases at which the dead ones are removed
}

type lease struct {
	token string
	ends  time.Time
}

func (m *memoryMaster) String() string { return "memory://" + m.name }

func (m *memoryMaster) Close() error { return nil }

func (m *memoryMaster) Do(cmds []*Command) {
	now := time.Now()
	for _, cmd := range cmds {
		held, ok := m.leases[cmd.Key]
		ok = ok && now.Before(held.ends)
		switch cmd.Op {
		case OpAcquire:
			switch {
			case !ok:
				m.leases[cmd.Key] = lease{cmd.Token, now.Add(cmd.TTL)}
				cmd.Reply.Status = StatusGranted
			case held.token == cmd.Token:
				cmd.Reply.Status = StatusGranted
			default:
				cmd.Reply = Reply{Status: StatusHeld, Holder: held.token, TTL: held.ends.Sub(now)}
			}
		case OpRelease:
			switch {
			case !ok:
				cmd.Reply.Status = StatusExpired
			case held.token == cmd.Token:
				delete(m.leases, cmd.Key)
				cmd.Reply.Status = StatusReleased
			default:
				cmd.Reply.Status = StatusNotOwner
			}
		}
	}
	m.sweep(now)
}

// sweep removes leases that ended without a release, whenever their number has doubled.
func (m *memoryMaster) sweep(now time.Time) {
	if len(m.leases) < max(m.sweepAt, 1024) {
		return
	}
	for key, l := range m.leases {
		if !now.Before(l.ends) {
			delete(m.leases, key)
		}
	}
	m.sweepAt = 2 * len(m.leases)
}
