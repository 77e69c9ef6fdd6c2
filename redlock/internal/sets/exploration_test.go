package sets

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const right, wrong, neighbor = 0b00111, 0b11001, 0b01111

// scenes are what is explored.
var scenes = []scene{
	{name: "a refused one, a master forgets", masters: []uint8{right, wrong}, old: 1, others: true, waiting: true, forget: 1},
	{name: "a wrong one starts, a master forgets", masters: []uint8{right, wrong}, old: 1, others: true, forget: 1, start: 1},
	{name: "the same, the names the other way", masters: []uint8{wrong, right}, old: 1, others: true, forget: 1, start: 1},
	{name: "both start", masters: []uint8{right, wrong}, start: 2},
	{name: "a master hangs", masters: []uint8{right, wrong}, old: 1, others: true, hang: 1, start: 1},
	{name: "one is cut off", masters: []uint8{right, wrong}, old: 1, others: true, cut: 1, start: 1},
	{name: "one is suspended", masters: []uint8{right, wrong}, old: 1, others: true, suspend: 1, start: 1},
	{name: "a master flaps", masters: []uint8{right}, old: 1, cut: 2},
	{name: "a neighbor starts", masters: []uint8{right, neighbor}, old: 1, forget: 1, start: 1},
	{name: "one more starts, a master forgets", masters: []uint8{right, right}, old: 1, forget: 1, start: 1},
	{name: "two start, and a wrong one", masters: []uint8{right, right, wrong}, old: 1, others: true, start: 2},
	{name: "all at once", masters: []uint8{right, right, wrong}, old: 1, others: true, forget: 1, cut: 1, hang: 1, start: 2, kill: 1, suspend: 1},
}

// TestExploration: whatever happens in these scenes, no two incompatible sets come into use that could know of one another, the older
// one goes on, and nobody is held up. STATES is how many states of each scene are explored at the most.
func TestExploration(t *testing.T) {
	t.Parallel()
	most := 200
	if redistest.Few() {
		most = 20
	}
	if n, err := strconv.Atoi(os.Getenv("STATES")); err == nil {
		most = n
	}
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			began := time.Now()
			states, all, broken := (&explorer{scene: sc}).explore(most)
			t.Logf("%d states in %v, all of them: %t", states, time.Since(began).Round(time.Millisecond), all)
			if broken != nil {
				t.Error(broken.trace())
			}
		})
	}
}

// mutants are the Judge without one clause of its rule each.
var mutants = []mutant{
	{
		name: "what a master said before it forgot doesn't stand", breaks: oneSet,
		scene:  scene{masters: []uint8{right, wrong}, old: 1, others: true, waiting: true, forget: 1, cut: 1},
		answer: func(j *Judge, master int, _ *protocol.Reply) { j.views[master].born = 0 },
	},
	{
		name: "a new process trusts a young memory", breaks: oneSet, scene: scenes[1],
		answer: func(_ *Judge, _ int, reply *protocol.Reply) { reply.Born -= settled.Microseconds() },
	},
	{
		name: "a claim is registered as a wait", breaks: oneSet, scene: scenes[3],
		send: func(_ *Judge, g *Registration) { g.Text = strings.Replace(g.Text, string(Claims), string(Waits), 1) },
		look: func(j *Judge, _ time.Time) {
			for i := range j.views {
				if v := &j.views[i]; j.state == Claims && !v.sent.Before(j.claimed) {
					v.told = v.sent
				}
			}
		},
	},
	{
		name: "a claim doesn't wait for all masters", breaks: oneSet, scene: scenes[1],
		look: func(j *Judge, _ time.Time) {
			told := slices.ContainsFunc(j.views, func(v view) bool { return !v.told.IsZero() })
			for i := range j.views {
				if told {
					j.views[i].absent = Gone
				}
			}
		},
	},
	{
		name: "the last word of a silent master doesn't stand", breaks: oneSet,
		scene: scene{masters: []uint8{right, wrong}, old: 1, others: true, waiting: true, hang: 1},
		look: func(j *Judge, now time.Time) {
			for i := range j.views {
				if v := &j.views[i]; now.Sub(v.sent) > Every+Every/2 && j.state == Waits {
					v.uses = nil
				}
			}
		},
	},
	{
		name: "nobody says for how long a set has been in use", breaks: parted,
		scene: scene{masters: []uint8{right, wrong}, old: 1, others: true, cut: 1, start: 1},
		send:  func(_ *Judge, g *Registration) { g.Age = 0 },
	},
	{
		name: "a set that is in use isn't joined", breaks: heldUp, scene: scenes[9],
		answer: func(j *Judge, _ int, reply *protocol.Reply) {
			if j.state == Claims && reply.Time > origin.Add(8*tick).UnixMicro() {
				reply.Lines = strings.ReplaceAll(reply.Lines, `"covers_ms":1000}`, `"covers_ms":1000,"state":"claims"}`)
			}
		},
	},
}

// TestMutants: the exploration finds each of them.
func TestMutants(t *testing.T) {
	t.Parallel()
	if redistest.Few() {
		t.Skip("make test-all runs it: it takes minutes")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			states, _, broken := (&explorer{scene: m.scene, mutant: m}).explore(6000)
			switch {
			case broken == nil:
				t.Errorf("survives %d states", states)
			case !strings.HasPrefix(broken.broken, m.breaks):
				t.Errorf("breaks another property than %q: %s", m.breaks, broken.trace())
			default:
				t.Logf("found after %d states", states)
			}
		})
	}
}
