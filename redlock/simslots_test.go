package redlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

const (
	tooMany      = "no more hold a key than the largest number in use allows"
	beyond       = "nobody has a slot beyond its own number"
	fewAttempts  = "a call has its slot, or is refused, after a few attempts"
	slotConserve = "no slot is free while a call waits that could take it"
)

// manySlots has keys have several holders. In some worlds, processes differ on how many.
func (w *world) manySlots(r *rand.Rand) {
	w.pairs, w.several, w.keys = false, false, min(w.keys, 2)
	w.slots, w.mixed = 2+r.IntN(4), chance(r, 40)
	for _, p := range w.processes {
		p.slots = w.slots
		if w.mixed {
			p.slots = 1 + r.IntN(w.slots)
		}
		p.clients = 1 + r.IntN(6)
	}
}

// severalSlots has many calls want several keys, of which each may have another number of holders.
func (w *world) severalSlots(varied bool) {
	w.several, w.keys, w.varied = true, 3, varied
	for _, p := range w.processes {
		p.clients = min(p.clients, 4)
	}
}

// most returns how many may hold a key, in the view of the process: with varied keys one, two, and as many as anything may have.
func (p *process) most(key string) int {
	if !p.world.varied {
		return max(p.slots, 1)
	}
	n, _ := strconv.Atoi(key)
	return max(min([]int{1, 2, p.slots}[n], p.slots), 1)
}

// most returns how many may hold a key in the view of any process.
func (w *world) most(key string) (n int) {
	for _, p := range w.processes {
		n = max(n, p.most(key))
	}
	return n
}

// oneBesideSeveral reports whether a process allows a key one holder, and another several: then a call may sleep for a third of the TTL beside a
// slot that is free.
func (w *world) oneBesideSeveral() bool {
	return slices.ContainsFunc(w.processes, func(p *process) bool { return w.slots > 1 && p.slots == 1 })
}

// isKey says whether a key is one of those that may have several holders.
func (w *world) isKey(key string) bool {
	n, err := strconv.Atoi(key)
	return err == nil && n < w.keys
}

func (h *holder) slotKey() string { return fmt.Sprint(lockname.Of(h.key), " ", h.Slot()) }

// judgeSlots counts the holders of each key at all times.
func (w *world) judgeSlots() {
	if w.slots < 2 {
		return
	}
	byKey := make(map[string][]*holder)
	for _, h := range w.held {
		if h.endedUnknown() || !w.isKey(h.key) {
			continue
		}
		byKey[h.key] = append(byKey[h.key], h)
		if h.Slot() > 0 && h.Slot() >= h.process.most(h.key) {
			w.violated(beyond, "grant %d has slot %d of %d", h.order, h.Slot(), h.process.most(h.key))
		}
		n := 0
		for _, other := range byKey[h.key] {
			if other.granted <= h.granted && h.granted < other.end() {
				n++
			}
		}
		if n > w.most(h.key) {
			w.violated(tooMany, "at %v, with grant %d, %d hold %s", h.granted, h.order, n, h.key)
		}
	}
	if !w.quiet || w.oneBesideSeveral() {
		return
	}
	if calls := int64(len(w.held)) + w.refused.Load(); !w.mixed && !w.several && w.attempts.Load() > 6*calls { // a try-lock makes up to five
		w.violated(fewAttempts, "%d attempts of %d calls", w.attempts.Load(), calls)
	}
	for _, c := range w.calls {
		if !w.isKey(c.keys[0]) {
			continue
		}
		wanted := make([]int, len(c.keys)) // a slot of each
		for more := true; more; {
			w.judgeSlot(c, wanted)
			more = false
			for i, key := range c.keys {
				if wanted[i]++; wanted[i] < c.process.most(key) {
					more = true
					break
				}
				wanted[i] = 0
			}
		}
	}
}

// judgeSlot looks for a time at which these slots of its keys were free while a call waited.
func (w *world) judgeSlot(c wanted, slot []int) {
	longest := 200 * time.Millisecond
	if w.several {
		longest = time.Second
	}
	free := c.from
	for _, h := range w.held {
		i := slices.Index(c.keys, h.key)
		if i < 0 || h.Slot() != slot[i] || h.end() <= free || h.endedUnknown() {
			continue
		}
		if h.granted > c.to || h.granted > free+longest {
			break
		}
		free = h.end()
	}
	if c.to > free+longest && free < w.faults.to {
		w.violated(slotConserve, "process %d waited for %v from %v to %v; slots %d are free from %v on", c.process.index, c.keys, c.from, c.to, slot, free)
	}
}

func lineOf(cmd *protocol.Command) string {
	line, _ := protocol.SlotOf(cmd.Key)
	return line
}

func slotWorld(w *world) {
	w.manySlots(rand.New(rand.NewPCG(w.seed, 901)))
}

func severalSlots(w *world) {
	slotWorld(w)
	w.severalSlots(true)
	for _, p := range w.processes {
		p.clients = 4
	}
}

func evenSlots(w *world) {
	slotWorld(w)
	w.mixed, w.keys = false, 1
	for _, p := range w.processes {
		p.slots = w.slots
		p.clients = 6
	}
}

// slotMutants are about keys that may have several holders.
var slotMutants = []mutant{
	{
		name: "a release frees a slot whoever has it", breaks: exclusion, shape: slotWorld,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if _, slot := protocol.SlotOf(cmd.Key); cmd.Op == protocol.OpRelease && slot > 0 {
				m.Leases.Delete(cmd.Key)
			}
			return false
		},
	},
	{
		name: "a slot is granted past the line", breaks: inOrder, quiet: true, shape: evenSlots,
		send: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpAcquire && cmd.Former != "" {
				cmd.Ticket = 1
			}
		},
	},
	{
		name: "a line for each slot", breaks: slotConserve, quiet: true, shape: evenSlots,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if line, slot := protocol.SlotOf(cmd.Key); slot > 0 && (cmd.Op == protocol.OpAcquire || cmd.Op == protocol.OpRelease) {
				if q, _, ok := m.Queues.Get(line, m.Clock()); ok {
					mine := *q
					m.Queues.Set(line, &memory.Queue{}, m.Clock(), time.Hour)
					m.Do([]*protocol.Command{cmd})
					m.Queues.Set(line, &mine, m.Clock(), time.Hour)
					return true
				}
			}
			return false
		},
	},
	{
		name: "nobody leads", breaks: slotConserve, quiet: true, shape: evenSlots,
		send: func(_ *route, cmd *protocol.Command) { cmd.Leads = false },
	},
	{
		name: "a slot is offered to the second in line", breaks: inOrder, quiet: true, shape: evenSlots,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if q, _, waiting := m.Queues.Get(lineOf(cmd), m.Clock()); cmd.Op == protocol.OpRelease && cmd.Leads && waiting && len(q.Places) > 1 {
				first := q.Places[0]
				q.Places = q.Places[1:]
				m.Do([]*protocol.Command{cmd})
				q.Join(first)
				return true
			}
			return false
		},
	},
	{
		name: "who takes a slot by chance keeps what it is offered", breaks: slotConserve, from: 180, quiet: true, shape: evenSlots,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op == protocol.OpAcquire && !cmd.Offered || cmd.Op == protocol.OpRelease {
				m.Offers.Delete(lineOf(cmd) + cmd.Process)
			}
			return false
		},
	},
	{
		name: "a process takes slots beyond its own number", breaks: tooMany, shape: evenSlots,
		send: func(l *route, cmd *protocol.Command) {
			line, slot := protocol.SlotOf(cmd.Key)
			if cmd.Op == protocol.OpAcquire || cmd.Op == protocol.OpExtend || cmd.Op == protocol.OpRelease {
				if l.process.index == 0 && l.process.world.isKey(strings.Trim(strings.TrimPrefix(line, DefaultPrefix+":"), "{}")) {
					cmd.Key = protocol.SlotKey(line, slot+1)
				}
			}
		},
	},
	{
		name: "masters count holders", breaks: tooMany, from: 1100, shape: evenSlots,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			line, _ := protocol.SlotOf(cmd.Key)
			holder, _, held := m.Leases.Get(cmd.Key, m.Clock())
			if cmd.Op == protocol.OpAcquire && cmd.Slots < 2 || held && holder == cmd.Token {
				return false
			}
			for slot := range 5 { // whichever is free, or has the token
				key := protocol.SlotKey(line, slot)
				holder, _, other := m.Leases.Get(key, m.Clock())
				if cmd.Op == protocol.OpAcquire && held && !other && slot < int(cmd.Slots) || cmd.Op != protocol.OpAcquire && other && holder == cmd.Token {
					cmd.Key = key
					break
				}
			}
			return false
		},
	},
	{
		name: "nobody is woken for other slots than the first", breaks: slotConserve, quiet: true, shape: evenSlots,
		hear: func(_ *route, w protocol.WakeUp) bool {
			_, slot := protocol.SlotOf(w.Key)
			return slot == 0
		},
	},
	{
		name: "a process has one place in the line for all its calls", breaks: fewAttempts, quiet: true, shape: evenSlots,
		send: func(_ *route, cmd *protocol.Command) { cmd.Process, _ = protocol.CallOf(cmd.Process) },
	},
	{
		name: "a call for several keys keeps its place for slots that are free", breaks: slotConserve, quiet: true, shape: severalSlots,
		send: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpRelease && cmd.Ticket > 0 {
				cmd.Queue = true
			}
		},
	},
	{
		name: "calls for several slots give back by turns what they want all of", breaks: slotConserve, quiet: true, shape: severalSlots,
		send: func(_ *route, cmd *protocol.Command) { cmd.Token = strings.TrimSuffix(cmd.Token, vote.SeveralMark) },
	},
	{
		name: "a call for several keys has its slots although one is refused", breaks: tooMany, shape: severalSlots,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if holder, _, held := m.Leases.Get(cmd.Key, m.Clock()); cmd.Op == protocol.OpAcquire && cmd.Slots < 2 && held && strings.HasSuffix(cmd.Token, vote.SeveralMark) && holder != cmd.Token {
				cmd.Reply.Status, cmd.Reply.Fence, cmd.Reply.Time = protocol.StatusGranted, cmd.Fence, m.Clock().UnixMicro()
				return true
			}
			return false
		},
	},
	{
		name: "waiters begin at slot 1", breaks: slotConserve, quiet: true, shape: evenSlots,
		send: func(_ *route, cmd *protocol.Command) {
			if line, slot := protocol.SlotOf(cmd.Key); cmd.Op == protocol.OpAcquire && cmd.Slots > 1 && cmd.Queue && slot == 0 {
				cmd.Key = protocol.SlotKey(line, 1)
			}
		},
	},
	{
		name: "the place of a call stays when it has a slot", breaks: allEnds, shape: evenSlots,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op != protocol.OpRelease || cmd.Slots < 2 || cmd.Queue {
				return false
			}
			cmd.Ticket = 0
			return false
		},
	},
}
