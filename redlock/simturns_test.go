package redlock

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// moving is that calls go on once nothing goes wrong any more, whatever was wrong before, and where all masters fail one condition at once.
const moving = "once nothing goes wrong any more, who waits has its turn within some round trips"

// trouble is what befalls all masters at once, before the last turns.
type trouble string

const (
	probation   trouble = "all connections have broken twice, so that no master is told to be well"
	youngMemory trouble = "all servers have forgotten everything"
	noLeader    trouble = "no leader answers"
)

// drawTrouble draws one, for half of the worlds.
func (w *world) drawTrouble(r *rand.Rand) {
	w.trouble = []trouble{probation, youngMemory, noLeader, "", "", ""}[r.IntN(6)]
}

// begins has it happen, and returns when all masters have votes again.
func (w *world) begins(happens trouble) (until time.Duration) {
	switch happens {
	case probation:
		for range 2 {
			time.Sleep(2 * link.MostPause)
			for _, l := range w.routes {
				l.LoseClients()
			}
		}
		return w.now() + 2*link.MostPause
	case youngMemory:
		for _, s := range w.servers {
			s.Flush()
		}
		time.Sleep(2 * heartbeat.Every) // all processes have noticed
		return w.now() + w.guard + 2*link.MostPause
	case noLeader:
		w.unled.Store(true)
	}
	return w.now()
}

// turn is how long the turn of a call may take that need not work: to be woken, to ask and to raise the fence is a round trip each, and it may have
// to ask twice, as votes are split or a release is still on its way. Without a leader it may have to ask for each slot.
func (w *world) turn() time.Duration {
	var trip time.Duration
	for _, l := range w.routes {
		trip = max(trip, 3*l.far+time.Millisecond)
	}
	turn := 6*trip + askGap
	if w.slots > 1 {
		turn += protocol.OfferTime // to one who has left meanwhile
	}
	if w.trouble == noLeader {
		turn += time.Duration(w.slots) * (4*w.timeout + trip)
	}
	return turn
}

// lastTurns has one process hold each key while the others wait for it, or beside it for one of the other slots.
func (w *world) lastTurns() {
	left := slices.DeleteFunc(slices.Clone(w.processes), (*process).left)
	stuck := slices.ContainsFunc(left, func(p *process) bool { return p.blocks.what == "connection" })
	if len(left) < 2 || stuck || w.wrong || w.slots > 1 && (w.mixed || w.neighbors) {
		return
	}
	turn := w.turn()
	until := w.begins(w.trouble)
	for n := range w.keys {
		key := strconv.Itoa(n)
		first := w.lastTurn(left[0], key)
		if first == nil {
			return
		}
		first.judgeTurn(max(until, first.asked()), turn)
		var others sync.WaitGroup
		next := make([]*holder, len(left)-1)
		for i, p := range left[1:] {
			others.Go(func() {
				if next[i] = w.lastTurn(p, key); next[i] != nil {
					w.unlock(next[i])
				}
			})
		}
		free := max(until, w.now())
		if left[0].most(key) == 1 {
			time.Sleep(turn) // all stand in line
			free = max(until, w.now())
			w.unlock(first)
		}
		others.Wait()
		for _, h := range next {
			if h != nil {
				h.judgeTurn(free, time.Duration(len(next))*turn)
			}
		}
		if first.unlocked == 0 {
			w.unlock(first)
		}
	}
}

// lastTurn takes a lock, however long that takes, or returns nil.
func (w *world) lastTurn(p *process, key string) *holder {
	lock, err := p.take(key, 2*w.guard+time.Minute, false)
	if err != nil {
		if p.locker.heart.refusal() == nil {
			w.violated(moving, "process %d can't lock %s: %v", p.index, key, err)
		}
		return nil
	}
	return w.granted(p, key, lock)
}

// asked is when its call came.
func (h *holder) asked() time.Duration { return h.granted - inside.AcquisitionOf(h.Lock).Waited }

// judgeTurn looks whether a lock was granted within so long after that was possible.
func (h *holder) judgeTurn(from, most time.Duration) {
	w := h.process.world
	from = max(from, time.Duration(w.repeated.Load()))
	if late := h.granted - from; late > most {
		w.violated(moving, "process %d has %s %v after it was free, want within %v (%s)", h.process.index, h.key, late, most, w.trouble)
	}
}

// turnMutants hold up calls where nothing goes wrong.
var turnMutants = []mutant{
	{
		name: "a call that no leader answers asks for one slot again and again", breaks: moving,
		shape: func(w *world) {
			evenSlots(w)
			w.trouble, w.neighbors = noLeader, false
		},
		send: func(l *route, cmd *protocol.Command) {
			switch p := l.process; {
			case cmd.Op == protocol.OpAcquire && cmd.Slots > 1 && p.world.unled.Load():
				first, _ := p.memory.LoadOrStore("slot of "+cmd.Process, cmd.Key)
				cmd.Key = first.(string)
				p.memory.Store(cmd.Token, cmd.Key)
			case cmd.Token != "" && p.recall(cmd.Token) != cmd.Token:
				cmd.Key = p.recall(cmd.Token)
			}
		},
	},
	{
		name: "nobody is woken once nothing goes wrong any more", breaks: moving,
		shape: func(w *world) { w.keys = 1 },
		hear:  func(l *route, _ protocol.WakeUp) bool { return !l.process.world.calm.Load() },
	},
}
