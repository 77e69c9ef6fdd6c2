package redlock

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// staysFirst is that who was there first goes on, whatever the masters forget.
const staysFirst = "a process that was first is refused"

// wrongProcesses gives one process, or several, other masters than the rest, in either order of the names; it shares one with
// them. It comes later. From then on the masters forget, hang, flap and are cut off as in other worlds.
func wrongProcesses(w *world) {
	r := w.random
	if len(w.servers) != 5 || w.quiet {
		return
	}
	w.moves, w.neighbours, w.faults.to = nil, false, w.faults.to+12*time.Second
	here, there := map[int]bool{3: true, 4: true}, map[int]bool{1: true, 2: true} // what they lack
	if chance(r, 50) {
		here, there = there, here
	}
	comes := between(r, time.Second, 2*time.Second)
	late := window{comes + time.Second, w.faults.to}
	for _, s := range w.servers {
		s.jump, s.downs, s.hangs = 0, nil, nil
		for range 2 {
			at := between(r, late.from, late.to)
			s.downs = append(s.downs, window{at, at + upTo(r, 200*time.Millisecond)})
			at = between(r, late.from, late.to)
			s.hangs = append(s.hangs, window{at, at + upTo(r, w.ttl)})
		}
	}
	wrong := 1 + r.IntN(len(w.processes)-1)
	for i, p := range w.processes {
		p.first, p.pauses = i < len(w.processes)-wrong, nil
		lacks := there
		if p.first {
			lacks = here
		}
		var links []*link
		for _, l := range p.links {
			if lacks[l.address] {
				continue
			}
			at := between(r, late.from, late.to)
			l.there, l.back, l.drops = windows{{at, at + upTo(r, w.ttl)}}, nil, nil
			if !p.first {
				l.there = append(l.there, window{0, comes})
			}
			links = append(links, l)
		}
		p.links = links
	}
}

// TestWrongProcesses: beside processes with other masters there is one holder of each key, and who was first goes on. SEEDS is the
// number of worlds, SEED the first one.
func TestWrongProcesses(t *testing.T) {
	count := uint64(60)
	if redistest.Few() {
		count = 10
	}
	worlds := number(t, "SEEDS", count)
	var grants atomic.Int64
	seeds(t, number(t, "SEED", 1), worlds, func(t *testing.T, seed uint64) bool {
		w := simulate(t, seed, mutant{shape: wrongProcesses})
		grants.Add(int64(len(w.held)))
		for _, broken := range w.broken {
			if strings.HasPrefix(broken, exclusion) || strings.HasPrefix(broken, staysFirst) {
				t.Errorf("seed %d: %s\n%s", seed, broken, w.trace())
				return false
			}
		}
		return true
	})
	t.Logf("%d locks", grants.Load())
}

// setMutants are wrong versions of what is said and heard of sets.
var setMutants = []mutant{
	{
		name: "nobody hears that a master has forgotten", breaks: exclusion, shape: wrongProcesses,
		answer: func(_ *link, cmd *protocol.Command) {
			if cmd.Op == protocol.OpRegister {
				cmd.Reply.Born = min(cmd.Reply.Born, 1)
			}
		},
	},
	{
		name: "others go unheard", breaks: exclusion, shape: wrongProcesses,
		answer: func(_ *link, cmd *protocol.Command) {
			var own []string
			for line := range strings.Lines(cmd.Reply.Lines) {
				if strings.HasSuffix(strings.TrimSuffix(line, "\n"), cmd.Token) {
					own = append(own, line)
				}
			}
			if cmd.Op == protocol.OpRegister {
				cmd.Reply.Lines = strings.Join(own, "")
			}
		},
	},
}
