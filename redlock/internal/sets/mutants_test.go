package sets

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// scripts are what must happen for a clause to matter, step by step.
var scripts = []scene{
	{
		name: "one that has waited and a new one claim at once", masters: []uint8{wrong, right}, old: 1, others: true, waiting: true, forget: 1, kill: 1, start: 1,
		script: []string{"process 0 is killed", "", "master 1 forgets", "", "process 0 starts"},
	},
	{
		name: "a neighbor starts while masters forget", masters: []uint8{right, neighbor}, old: 1, forget: 4, start: 1,
		script: []string{"master 0 forgets, and process 1 starts", "", "master 1 forgets", "", "master 2 forgets", "", "master 0 forgets"},
	},
	{
		name: "the first process of an old set is gone", masters: []uint8{right, right, wrong}, old: 1, others: true, cut: 2, start: 2, kill: 1,
		script: []string{
			"process 0 is cut off from master 0", "", "", "", "", "process 2 starts", "", "",
			"process 1 starts, cut off from master 0", "", "process 0 is killed", "process 1 reaches master 0 again",
		},
	},
	{
		name: "a claim that gets no quorum", masters: []uint8{right, wrong}, hang: 2, start: 2,
		script: []string{"process 1 starts", "master 3 hangs", "master 4 hangs", "", "", "", "", "process 0 starts"},
	},
	{
		name: "two claim while a memory is young", masters: []uint8{right, wrong}, others: true, forget: 1, start: 2, soon: 3,
		script: []string{"master 0 forgets, and process 1 starts", "process 0 starts"},
	},
	{
		name: "one more starts while masters forget", masters: []uint8{right, right}, old: 1, forget: 4, start: 1,
		script: []string{"master 0 forgets, and process 1 starts", "", "master 1 forgets", "", "master 2 forgets", "", "master 0 forgets"},
	},
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
		name: "a set that is in use isn't joined", breaks: heldUp, scene: scripts[5],
		answer: func(j *Judge, _ int, reply *protocol.Reply) {
			if j.state == Claims && reply.Time > origin.Add(8*tick).UnixMicro() {
				reply.Lines = strings.ReplaceAll(reply.Lines, `"covers_ms":1000}`, `"covers_ms":1000,"state":"claims"}`)
			}
		},
	},
	{
		name: "a master with a restart guard is taken for one that is silent", breaks: oneSet, scene: scenes[11],
		look: func(j *Judge, _ time.Time) {
			for i := range j.views {
				if v := &j.views[i]; v.absent == Guarded {
					v.absent = Silent
				}
			}
		},
	},
	{
		name: "a set that has waited loses no ties", breaks: ties, scene: scripts[0],
		look: func(j *Judge, _ time.Time) { j.own.Waited = false },
	},
	{
		name: "of two claims none goes first", breaks: nobody, scene: scripts[4],
		answer: func(j *Judge, _ int, reply *protocol.Reply) {
			var lines []string
			for line := range strings.Lines(reply.Lines) {
				if strings.Contains(line, string(Claims)) && !strings.Contains(line, j.own.text()) {
					line = strings.Replace(line, " 6000 {", " 96000 {", 1) // a text that is larger than any
				}
				lines = append(lines, line)
			}
			reply.Lines = strings.Join(lines, "")
		},
	},
	{
		name: "a compatible set that is in use isn't followed", breaks: heldUp, scene: scripts[1],
		answer: func(j *Judge, _ int, reply *protocol.Reply) {
			reply.Lines = strings.Join(slices.DeleteFunc(slices.Collect(strings.Lines(reply.Lines)), func(line string) bool {
				return j.state == Claims && reply.Time > origin.Add(8*tick).UnixMicro() && !strings.Contains(line, j.own.text())
			}), "")
		},
	},
	{
		name: "a process doesn't take over for how long its set has been in use", breaks: elder, scene: scripts[2],
		send: func(j *Judge, g *Registration) { g.Age = min(g.Age, g.sent.Sub(j.began)) },
		look: func(j *Judge, _ time.Time) {
			if j.since.Before(j.began) {
				j.since = j.began
			}
		},
	},
	{
		name: "a claim without a quorum isn't withdrawn", breaks: heldUp, scene: scripts[3],
		send: func(j *Judge, g *Registration) {
			if j.refusal == nil {
				g.Text = strings.Replace(g.Text, string(Waits), string(Claims), 1)
			}
		},
	},
	{
		name: "a registration doesn't take the place of the former one", breaks: nobody, scene: scripts[4],
		send: func(_ *Judge, g *Registration) { g.Former = "" },
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
