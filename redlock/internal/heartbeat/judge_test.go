package heartbeat

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const right, wrong, near, four, next = 0b00111, 0b11001, 0b01011, 0b01111, 0b01110

// worlds are what is explored.
var worlds = []world{
	{name: "both start", masters: []uint8{right, wrong}, left: [faults]int{starts: 2}},
	{name: "both start, on young masters", fresh: true, masters: []uint8{right, wrong}, left: [faults]int{starts: 2}},
	{name: "both start, and share two", masters: []uint8{right, near}, left: [faults]int{starts: 2}},
	{name: "both start, one is suspended", masters: []uint8{right, wrong}, left: [faults]int{starts: 2, stops: 1}},
	{name: "a wrong one starts, a master forgets", masters: []uint8{right, wrong}, old: 1, left: [faults]int{starts: 1, forgets: 1}},
	{name: "a wrong one starts, one is cut off", masters: []uint8{right, wrong}, old: 1, left: [faults]int{starts: 1, cut: 1}},
	{name: "a wrong one starts, one is suspended", masters: []uint8{right, wrong}, old: 1, left: [faults]int{starts: 1, stops: 1}},
	{name: "a wrong one starts, a master is down", masters: []uint8{right, wrong}, old: 1, left: [faults]int{starts: 1, down: 1}},
	{name: "a wrong one starts, masters are away", masters: []uint8{right, wrong}, old: 1, left: [faults]int{starts: 1, down: 2}},
	{name: "a wrong one starts, one is cut off twice", masters: []uint8{right, wrong}, old: 1, left: [faults]int{starts: 1, cut: 2}},
	{name: "both start, one is cut off", masters: []uint8{right, wrong}, left: [faults]int{starts: 2, cut: 1}},
	{name: "both start, a master is down", masters: []uint8{right, wrong}, left: [faults]int{starts: 2, down: 1}},
	{name: "a refused one, two masters forget", masters: []uint8{right, wrong}, old: 1, beside: true, left: [faults]int{forgets: 3}},
	{name: "a refused one, masters are away", masters: []uint8{right, wrong}, old: 1, beside: true, left: [faults]int{down: 2}},
	{name: "a refused one, masters restart", masters: []uint8{right, wrong}, old: 1, beside: true, left: [faults]int{down: 2, restarts: 1}},
	{name: "the right one leaves", masters: []uint8{right, wrong}, old: 1, beside: true, left: [faults]int{starts: 1, dies: 1}},
	{name: "a wrong one keeps coming", masters: []uint8{right, wrong}, old: 1, only: 2, left: [faults]int{starts: 3, dies: 3}},
	{name: "one more starts while masters forget", masters: []uint8{right, right}, old: 1, left: [faults]int{starts: 1, forgets: 2}},
	{name: "servers restart", masters: []uint8{right, right}, old: 2, idle: 3, left: [faults]int{restarts: 3}},
	{name: "a server restarts", masters: []uint8{right, right}, old: 2, idle: never, left: [faults]int{restarts: 1}},
	{name: "a server restarts, one is cut off", masters: []uint8{right, right}, old: 2, idle: 3, left: [faults]int{restarts: 1, cut: 1}},
	{name: "a server restarts, and processes", masters: []uint8{right, right, right}, old: 2, left: [faults]int{restarts: 1, dies: 1, starts: 1}},
	{name: "a server restarts, a wrong one starts", masters: []uint8{right, wrong}, old: 1, left: [faults]int{restarts: 1, starts: 1}},
	{name: "neighbors", masters: []uint8{right, four}, old: 1, left: [faults]int{starts: 1, forgets: 1}},
	{name: "two steps of a change", masters: []uint8{right, four, next}, old: 1, left: [faults]int{starts: 2}},
}

// TestExploration: whatever happens in these worlds, no two incompatible processes lock that could know of one another, the elder goes
// on, nobody is refused for longer than R after the others have gone, and no master votes for a newcomer that has lost what a process which is there
// has known. STATES is how many states of each world are explored at most.
func TestExploration(t *testing.T) {
	t.Parallel()
	most, ways := 3000, 20
	if redistest.Few() {
		most, ways = 300, 2
	}
	if n, err := strconv.Atoi(os.Getenv("STATES")); err == nil {
		most, ways = n, n/100
	}
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			began := time.Now()
			states, all, broken := w.explore(most)
			if broken == nil && !all {
				broken = w.walk(ways, 20, 1)
			}
			t.Logf("%d states in %v, all of them: %t", states, time.Since(began).Round(time.Millisecond), all)
			if broken != nil {
				t.Errorf("%s:\n%s", broken.broken(), broken.trace())
			}
		})
	}
}

func worldOf(name string) world {
	for _, w := range worlds {
		if w.name == name {
			return w
		}
	}
	panic(name)
}

// mutants are the rule without one clause each.
var mutants = []struct {
	name, world string
	mutant
}{
	{"nobody tells that it is about to lock", "both start", mutant{send: func(b *protocol.Beat) {
		if b.Since == begins {
			b.Since = waits
		}
	}, look: func(j *Judge, now time.Time) {
		for i := range j.masters {
			if j.since == begins && j.masters[i].up {
				j.masters[i].answered = now
			}
		}
		j.Look(now)
	}}},
	{"who is about to lock doesn't wait for all masters", "a wrong one starts, a master forgets", mutant{look: func(j *Judge, now time.Time) {
		for i := range j.masters {
			j.masters[i].gone = true
		}
	}}},
	{"what was told isn't remembered", "a refused one, two masters forget", mutant{look: func(j *Judge, _ time.Time) {
		clear(j.known)
	}}},
	{"a rival is forgotten as soon as it can't reach its masters", "a refused one, masters are away", mutant{look: func(j *Judge, now time.Time) {
		for _, p := range j.known {
			p.apart = time.Time{}
		}
		j.Look(now)
	}}},
	{"a beat is no lease", "both start, one is suspended", mutant{look: func(j *Judge, now time.Time) {
		for i := range j.masters {
			if m := &j.masters[i]; !m.answered.IsZero() {
				m.answered = now.Add(100 * Every)
			}
		}
	}}},
	{"the elder isn't known", "a wrong one keeps coming", mutant{look: func(j *Judge, now time.Time) {
		for _, p := range j.known {
			if p.Since > begins && j.since > begins {
				p.Since = begins + 1
			}
		}
		j.Look(now)
	}, answer: func(_ *Judge, _ int, reply *protocol.Reply) { reply.Answer.(*protocol.Beats).Lines = "" }}},
	{"nobody tells that a master has lost its data", "one more starts while masters forget", mutant{send: func(b *protocol.Beat) {
		b.Knew = 0
	}}},
	{"a restart counts as other masters", "a server restarts", mutant{look: func(j *Judge, now time.Time) {
		for _, p := range j.known {
			p.unlike = now.Add(-time.Hour)
		}
		j.Look(now)
	}}},
	{"what can't be reached is told", "a server restarts, one is cut off", mutant{look: func(j *Judge, _ time.Time) {
		for i := range j.masters {
			if m := &j.masters[i]; !m.up && m.run != "" {
				j.own.Masters[i].Run = m.run
			}
		}
	}}},
}

// TestClockSetBackSinceStart: an uptime that is negative, as the server's clock was set back, says nothing of when others have reached it.
func TestClockSetBackSinceStart(t *testing.T) {
	now := time.Now()
	j := New("a", About{MaxTTL: 1000}, []string{"localhost"})
	j.Reached(now, 0, protocol.Server{RunID: "ours", HasUptime: true, Uptime: -time.Hour, Received: now}, time.Time{})
	other := Process{About: About{Wire: wire, Masters: []Server{{Name: "localhost", Run: "another"}}}, Told: now.Add(time.Minute)}
	if j.compatible(&other) {
		t.Error("another server is taken for ours, because it has the same name")
	}
}

// asked is a judge of three masters that has reached all of them.
func asked(now time.Time) *Judge {
	j := New("a", About{MaxTTL: 10_000}, []string{"m", "n", "o"})
	for i, run := range []string{"m", "n", "o"} {
		j.Reached(now, i, protocol.Server{RunID: run}, time.Time{})
	}
	return j
}

// answers has masters answer a beat that is sent now.
func answers(j *Judge, now time.Time, masters ...int) {
	b := j.Beat()
	for _, i := range masters {
		j.Answered(now, i, b, now, protocol.Reply{Time: now.UnixMicro(), Answer: &protocol.Beats{Born: 1}})
	}
}

// TestQuorumMustKnow: a process that fewer than a quorum have answered doesn't lock, nor tells others that it does.
func TestQuorumMustKnow(t *testing.T) {
	for n, locks := range map[int]bool{1: false, 2: true} {
		now := time.Now()
		j := asked(now)
		answers(j, now, []int{0, 1, 2}[:n]...)
		now = now.Add(Grace)
		if j.Look(now); j.Beat().Since > begins != locks || j.Until().IsZero() == locks {
			t.Errorf("%d of 3 masters: it tells since %d, and locks until %v", n, j.Beat().Since, j.Until())
		}
	}
}

// TestRememberedByFastClocks: it locks no longer than masters remember it whose clocks run one percent faster than its own.
func TestRememberedByFastClocks(t *testing.T) {
	now := time.Now()
	j := asked(now)
	answers(j, now, 0, 1, 2)
	j.Look(now.Add(Grace))
	forgotten := now.Add(j.own.life() * 100 / 101)
	if until := j.Until(); until.IsZero() || until.After(forgotten) {
		t.Errorf("until %v, want before %v", until, forgotten)
	}
}

// TestBirthOfIdleMaster: that a master remembers since later is no loss if it hasn't heard of anybody for as long as it remembers. That it
// has been away is none, either.
func TestBirthOfIdleMaster(t *testing.T) {
	for _, c := range []struct {
		passed time.Duration
		born   int64
		lost   bool
	}{{time.Minute, 2, true}, {time.Minute, 1, false}, {protocol.BeatMemory, 2, false}} {
		now := time.Now()
		j := asked(now)
		answers(j, now, 0)
		now = now.Add(c.passed)
		reply := protocol.Reply{Time: now.UnixMicro(), Answer: &protocol.Beats{Born: c.born}}
		if got := j.Answered(now, 0, j.Beat(), now, reply); got != c.lost {
			t.Errorf("after %v, born at %d: lost %t, want %t", c.passed, c.born, got, c.lost)
		}
	}
}

// TestStepIsDoneAfterAll: that a step of a change of masters is done is told when so much time has passed without the others' masters that all
// have been told of.
func TestStepIsDoneAfterAll(t *testing.T) {
	now := time.Now()
	j := asked(now)
	answers(j, now, 0, 1, 2)
	j.Look(now.Add(Grace))
	other := `{"wire":` + strconv.Itoa(wire) + `,"max_ttl_ms":10000,"servers":[{"name":"m","run":"m"},{"name":"n","run":"n"},{"name":"o","run":"o"},{"name":"p","run":"p"}]}`
	now = now.Add(Every)
	j.Answered(now, 0, j.Beat(), now, protocol.Reply{Time: now.UnixMicro(), Answer: &protocol.Beats{Born: 1, Lines: "b 0 1 1 " + other + "\n"}})
	done := func() (told bool) {
		for _, n := range j.Notes() {
			told = told || strings.HasPrefix(n.Text, "all processes have the same masters now")
		}
		return told
	}
	for forgotten := now.Add(j.known["b"].life()); ; now = now.Add(Every / 2) {
		answers(j, now, 0, 1, 2)
		if done() {
			if now.Sub(forgotten) < Settled/2 {
				t.Errorf("told %v after the other was last known", now.Sub(forgotten))
			}
			return
		}
		if now.Sub(forgotten) > time.Minute {
			t.Fatal("never told")
		}
	}
}

// TestSinceUnknown: a process doesn't count as the eldest because its masters haven't told it the time.
func TestSinceUnknown(t *testing.T) {
	now := time.Now()
	j := New("a", About{MaxTTL: 1000}, []string{"m"})
	for range 3 {
		b := j.Beat()
		j.KnowsNothing(now, 0, b, now)
	}
	if j.since < now.Add(-time.Minute).UnixMicro() {
		t.Errorf("it locks since %v", time.UnixMicro(j.since))
	}
}

// TestLossOfTheMasterInCommon: an incompatible process that locks counts for another life once the master that told of it has restarted or
// lost its data: it may have been suspended meanwhile, and wait for its restart guard before it tells that again. If the master is gone for good, the
// other process counts no longer than masters remember it, so nobody needs to restart who was refused.
func TestLossOfTheMasterInCommon(t *testing.T) {
	for name, lose := range map[string]func(j *Judge, now time.Time){
		"restart": func(j *Judge, now time.Time) { j.Reached(now, 0, protocol.Server{RunID: "restarted"}, time.Time{}) },
		"loss": func(j *Judge, now time.Time) {
			j.Answered(now, 0, j.Beat(), now, protocol.Reply{Time: 1, Answer: &protocol.Beats{Born: 2}})
		},
		"gone": func(j *Judge, now time.Time) { j.Failed(now, 0, j.Beat(), true) }, // for good
	} {
		for since, waits := range map[string]bool{"1": name != "gone", "0": false} {
			now := time.Now()
			j := New("a", About{MaxTTL: 1000}, []string{"m", "n", "o"})
			for i, run := range []string{"common", "n", "o"} {
				j.Reached(now, i, protocol.Server{RunID: run}, time.Time{})
			}
			other := `{"wire":` + strconv.Itoa(wire) + `,"max_ttl_ms":1000,"servers":[{"name":"m","run":"common"},{"name":"p","run":"p"},{"name":"q","run":"q"}]}`
			j.Answered(now, 0, j.Beat(), now, protocol.Reply{Time: 1, Answer: &protocol.Beats{Born: 1, Lines: "b 0 1 " + since + " " + other + "\n"}})
			life := j.own.life()
			refused := func(at time.Time) bool { j.Look(at); return j.Refusal() != nil }
			lost := now.Add(life - time.Second)
			if !refused(lost) {
				t.Fatalf("%s, since %s: it isn't refused", name, since)
			}
			lose(j, lost)
			if got := refused(now.Add(life + time.Second)); got != waits {
				t.Errorf("%s, since %s: refused %t when the other's time is over", name, since, got)
			}
			if refused(lost.Add(life + time.Second)) {
				t.Errorf("%s, since %s: it is refused for longer than a life after the loss", name, since)
			}
		}
	}
}

// TestAnotherWire: a process doesn't lock beside one that keeps its locks in another way, even with the same masters: one of an earlier version, that
// tells no number, nor of a later one.
func TestAnotherWire(t *testing.T) {
	for about, locks := range map[string]bool{
		`{"version":"v9","max_ttl_ms":10000,"masters":[{"name":"m","run":"m"},{"name":"n","run":"n"},{"name":"o","run":"o"}]}`:                              false,
		`{"version":"v9","wire":1,"max_ttl_ms":10000,"servers":[{"name":"m","run":"m"},{"name":"n","run":"n"},{"name":"o","run":"o"}]}`:                     false,
		fmt.Sprintf(`{"version":"v9","wire":%d,"max_ttl_ms":10000,"servers":[{"name":"m","run":"m"},{"name":"n","run":"n"},{"name":"o","run":"o"}]}`, wire): true,
	} {
		now := time.Now()
		j := asked(now)
		b := j.Beat()
		for i := range 3 {
			j.Answered(now, i, b, now, protocol.Reply{Time: now.UnixMicro(), Answer: &protocol.Beats{Born: 1, Lines: "b 0 1 1 " + about + "\n"}})
		}
		j.Look(now.Add(Grace))
		refusal := j.Refusal()
		if refusal == nil != locks || j.Until().IsZero() == locks {
			t.Errorf("beside %s: it is refused with %v, and locks until %v", about, refusal, j.Until())
		}
		if refusal != nil && !strings.Contains(refusal.Error(), "has version v9") {
			t.Errorf("the refusal says: %v", refusal)
		}
	}
}

// TestMutants: the exploration finds each of them.
func TestMutants(t *testing.T) {
	t.Parallel()
	if redistest.Few() {
		t.Skip("make models runs it")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			w := worldOf(m.world)
			w.mutant = m.mutant
			_, _, broken := w.explore(20000)
			if broken == nil {
				broken = w.walk(300, 20, 1)
			}
			if broken == nil {
				t.Fatal("survives")
			}
			t.Logf("%s after %d steps", broken.broken(), len(broken.trace()))
		})
	}
}
