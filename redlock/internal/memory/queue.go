package memory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Queue is the processes that wait for a key, in the order of their tickets.
type Queue struct{ Places []Place }

type Place struct {
	Process string
	Ticket  int64
	Ends    time.Time // the time from which the process doesn't count as waiting
	Slots   int       // the place is for all slots below this number; 0 means only slot 0
}

// before reports whether the place comes before the place of another process. Equal tickets are ordered by name, so that all masters have the same
// order.
func (p Place) before(ticket int64, process string) bool {
	return cmp.Or(cmp.Compare(p.Ticket, ticket), cmp.Compare(p.Process, process)) < 0
}

// isCall reports whether the place is of a call for a key with several holders.
func (p Place) isCall() bool {
	_, call := protocol.CallOf(p.Process)
	return call > 0
}

// Join gives a process this place, and removes its former one.
func (q *Queue) Join(p Place) {
	q.leave(p.Process, math.MaxInt64)
	at, _ := slices.BinarySearchFunc(q.Places, p, func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Process, b.Process))
	})
	q.Places = slices.Insert(q.Places, at, p)
}

// leave removes a process from the queue, unless its ticket is later than the given one.
func (q *Queue) leave(process string, ticket int64) {
	q.Places = slices.DeleteFunc(q.Places, func(p Place) bool { return p.Process == process && p.Ticket <= ticket })
}

func (q *Queue) has(process string, ticket int64) bool {
	return slices.ContainsFunc(q.Places, func(p Place) bool { return p.Process == process && p.Ticket >= ticket })
}

// Oldest returns the first place for this slot, or nil. It skips the place of the process but, and drops expired places.
func (q *Queue) Oldest(but string, slot int, now time.Time) *Place {
	for skip := 0; skip < len(q.Places); {
		switch p := &q.Places[skip]; {
		case p.Process == but:
			skip++
		case !now.Before(p.Ends):
			q.Places = slices.Delete(q.Places, skip, skip+1)
		case slot > 0 && p.Slots <= slot:
			skip++
		default:
			return p
		}
	}
	return nil
}

// elsewhere returns the number of holders that the first other process in the queue allows, or 0 if no other process waits.
func (q *Queue) elsewhere(but string, now time.Time) uint16 {
	for _, p := range q.Places {
		if p.Process != but && now.Before(p.Ends) {
			return uint16(max(p.Slots, 1))
		} else if p.Process != but {
			break
		}
	}
	return 0
}

func (q *Queue) lines(now time.Time) string {
	var lines []string
	for _, p := range q.Places[:min(len(q.Places), protocol.MaxWaiters)] {
		if now.Before(p.Ends) {
			lines = append(lines, protocol.Waiter{Process: p.Process, Ticket: p.Ticket}.Line())
		}
	}
	return strings.Join(lines, "\n")
}

// Listen passes on all messages to a process, and never misses one.
func (m *Master) Listen(ctx context.Context, process string, _ time.Duration, ready func(), message func(protocol.WakeUp)) error {
	m.Subscribe(process, message)
	ready()
	<-ctx.Done()
	m.Subscribe(process, nil)
	return context.Cause(ctx)
}

// Subscribe makes the master call message for each message to the process; nil ends the subscription.
func (m *Master) Subscribe(process string, message func(protocol.WakeUp)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case message == nil:
		delete(m.listeners, process)
	case m.listeners == nil:
		m.listeners = map[string]func(protocol.WakeUp){process: message}
	default:
		m.listeners[process] = message
	}
}

// publish sends a message to a process, and reports whether the process is subscribed.
func (m *Master) publish(process string, w protocol.WakeUp) bool {
	process, w.Call = protocol.CallOf(process)
	m.mu.Lock()
	message := m.listeners[process]
	m.mu.Unlock()
	if message == nil {
		return false
	}
	m.said = append(m.said, func() { message(w) })
	return true
}

// Join gives the command's process its place in the queue of the key.
func (m *Master) Join(cmd *protocol.Command, now time.Time) *Queue {
	q, ends, ok := m.Queues.Get(lineOf(cmd), now)
	if !ok || len(q.Places) == 0 {
		q, ends = &Queue{}, now
	}
	q.Join(Place{cmd.Process, cmd.Ticket, now.Add(cmd.TTL), int(cmd.Slots)})
	m.Queues.Set(lineOf(cmd), q, now, max(cmd.TTL, ends.Sub(now)))
	if m.Plain.Delete(cmd.Key); cmd.Slots > 1 {
		m.Plain.Delete(lineOf(cmd)) // the holder of slot 0 may be a process that allows one holder
	}
	return q
}

// wake tells the process at this place that the key is free, and reports whether the process is subscribed. A process that isn't subscribed loses its
// place.
func (m *Master) wake(key string, q *Queue, p Place) bool {
	if m.publish(p.Process, protocol.WakeUp{Key: key, Ticket: p.Ticket}) {
		return true
	}
	q.leave(p.Process, math.MaxInt64)
	return false
}
