package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestRegisterScriptDoesWhatTheModelDoes compares them over random registrations.
func TestRegisterScriptDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1)[0]
	m := dial(t, s.URL())
	var now time.Time // the model's clock
	model := memory.New("model", func() time.Time { return now })
	lapsed, known := 0, 0
	process, named := []string{"", "A a", "B b", "C c", "D d"}, make(map[int]int)
	lines := func(text string) []string {
		return slices.Sorted(strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' }))
	}
	names := func(d interface{ Do([]*protocol.Command) }, ids string) []string {
		cmd := &protocol.Command{Op: protocol.OpNames, Key: "redlock:sets:{sets}", Token: ids, Process: "k1"}
		d.Do([]*protocol.Command{cmd})
		if cmd.Reply.Err != nil {
			t.Fatal(cmd.Reply.Err)
		}
		told := append(lines(cmd.Reply.Lines), lines(cmd.Reply.Others)...)
		for i, line := range told {
			if words := strings.SplitN(line, " ", 4); len(words) == 4 { // without how long ago it was seen
				told[i] = words[0] + " " + words[1] + " " + words[3]
			}
		}
		return told
	}
	ids, turns := "", []string{"", "k1 {}\n", "k2 {}\nk1 a%b\n", "k1k {}\n k1 {}\n"}
	var atFirst, answered []string // the model's names when a master was asked for its own, and that master's reply
	for i := range 2000 {
		if i%400 == 0 {
			time.Sleep(2 * 2 * protocol.MaxSets * time.Millisecond) // all have lapsed
		}
		n := rand.IntN(2 * protocol.MaxSets)
		cmd := &protocol.Command{Op: protocol.OpRegister, Key: "redlock:sets:{sets}", Token: fmt.Sprint(1+2*n, " {", n, "}"), TTL: time.Minute,
			Process: process[rand.IntN(len(process))], About: fmt.Sprint(rand.IntN(3), " v"), Turns: turns[rand.IntN(len(turns))], Age: time.Duration(rand.IntN(3)*rand.IntN(1000)) * time.Microsecond, Ticket: rand.Int64N(2) * (time.Now().UnixMicro() + rand.Int64N(2000) - 1000)}
		if former := rand.IntN(2 * protocol.MaxSets); rand.IntN(3) == 0 {
			cmd.Former = fmt.Sprint(1+2*former, " {", former, "}")
		}
		m.Do([]*protocol.Command{cmd})
		if cmd.Reply.Err != nil {
			t.Fatal(cmd.Reply.Err)
		}
		now = time.UnixMicro(cmd.Reply.Time)
		if i > 0 {
			// The master was asked between two registrations, and processes may have been forgotten in between.
			atLast := names(model, ids)
			if !within(answered, atFirst) || !within(atLast, answered) {
				t.Fatalf("before registration %d the server named %q, the model %q and then %q", i, answered, atFirst, atLast)
			}
			named[len(atLast)]++
		}
		want := *cmd
		model.Do([]*protocol.Command{&want})
		if got, want := cmd.Reply, want.Reply; got.Mark != want.Mark || got.Born == 0 || got.Born != want.Born || !slices.Equal(lines(got.Lines), lines(want.Lines)) || !slices.Equal(lines(got.Others), lines(want.Others)) {
			t.Fatalf("registration %d of %s:\nserver %+v\nmodel  %+v", i, cmd.Token, got, want)
		}
		ids = []string{"A C D", ""}[rand.IntN(2)]
		atFirst, answered = names(model, ids), names(m, ids)
		before := known
		if known = strings.Count(want.Reply.Lines, "{"); known < before {
			lapsed++
		}
	}
	t.Logf("processes named, and how often: %v", named)
	if named[3] < 5 || named[4] < 5 || named[5] < 5 { // with what they tell of the key
		t.Errorf("too little was named: %v", named)
	}
	if lapsed == 0 || known == 0 {
		t.Errorf("%d times sets have lapsed, %d are left", lapsed, known)
	}
	redistest.RequireNoKeys(t, []*redistest.Server{s})
}

// within reports whether all of these names are among those.
func within(these, those []string) bool {
	return !slices.ContainsFunc(these, func(name string) bool { return !slices.Contains(those, name) })
}
