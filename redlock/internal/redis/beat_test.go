package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestBeatScriptDoesWhatTheModelDoes compares them over random beats.
func TestBeatScriptDoesWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1)[0]
	m := dial(t, s.URL())
	var now time.Time // the model's clock
	model := memory.New("model", func() time.Time { return now })
	lines := func(text string) []string {
		return slices.Sorted(strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' }))
	}
	names := func(d interface{ Do([]*protocol.Command) }, ids []string) []string {
		cmd := &protocol.Command{Op: protocol.OpNames, Key: "redlock:processes:{processes}", Ask: &protocol.Names{IDs: ids, Hash: "k1"}}
		d.Do([]*protocol.Command{cmd})
		if cmd.Reply.Err != nil {
			t.Fatal(cmd.Reply.Err)
		}
		named := cmd.Reply.Answer.(*protocol.Named)
		told := append(lines(named.Lines), lines(named.Turns)...)
		for i, line := range told {
			if words := strings.SplitN(line, " ", 3); len(words) == 3 && !strings.HasPrefix(words[1], "{") { // without how long ago that was
				told[i] = words[0] + " " + words[2]
			}
		}
		return told
	}
	turns := []string{"", "k1 {}\n", "k2 {}\nk1 a%b\n", "k1k {}\n k1 {}\n"}
	asks := [][]string{nil, {"A"}, {"B", "G", "X"}}
	var kinds, lapsed, named, ahead, lost, before int
	numbers := make(map[string]int64)
	for i := range 2000 {
		if rand.IntN(40) == 0 { // the data are lost
			key := "redlock:processes:{processes}"
			if err := s.Client().Del(t.Context(), key, key+":turns", key+":ends", key+":kinds").Err(); err != nil {
				t.Fatal(err)
			}
			model.Processes, before = memory.Processes{}, 0
			if rand.IntN(2) == 0 { // and a newcomer is the first
				first, second := greeted(t, m), greeted(t, m)
				if first != model.Processes.Greet(second.Born) || second != model.Processes.Past() {
					t.Fatalf("beat %d: the first two newcomers are told %+v and %+v", i, first, second)
				}
			}
		}
		if rand.IntN(40) == 0 {
			time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond) // some lapse, or all
		}
		id := string(rune('A' + rand.IntN(8)))
		numbers[id] = max(1, numbers[id]+rand.Int64N(4)-1) // some come late
		kind := 0
		if rand.IntN(10) < 3 || i%200 > 100 {
			kind = rand.IntN(4)
		}
		cmd := &protocol.Command{Op: protocol.OpBeat, Key: "redlock:processes:{processes}", Ask: &protocol.Beat{
			ID: id, Number: numbers[id], Life: time.Duration(30-8*kind) * time.Millisecond, Kind: fmt.Sprint("3/", kind), Since: rand.Int64N(3) - 1, About: fmt.Sprint(`{"a b":`, rand.IntN(3), "}"),
			Turns: turns[rand.IntN(len(turns))], Asks: asks[rand.IntN(len(asks))], Shown: rand.Int64N(2) * (time.Now().UnixMicro() + rand.Int64N(2000) - 1000),
			Knew: []int64{0, model.Processes.Born, 1}[rand.IntN(60)/29],
		}}
		m.Do([]*protocol.Command{cmd})
		if cmd.Reply.Err != nil {
			t.Fatal(cmd.Reply.Err)
		}
		now = time.UnixMicro(cmd.Reply.Time)
		want := *cmd
		model.Do([]*protocol.Command{&want})
		heard := want.Reply.Answer.(*protocol.Beats)
		if got, want := cmd.Reply.Answer.(*protocol.Beats), heard; got.Mark != want.Mark || got.Born == 0 || got.Born != want.Born || !slices.Equal(lines(got.Lines), lines(want.Lines)) {
			t.Fatalf("beat %d, %+v:\nserver %+v\nmodel  %+v", i, cmd.Ask, got, want)
		}
		told := greeted(t, m)
		if told != model.Processes.Past() {
			t.Fatalf("beat %d, %+v: a newcomer is told %+v, and by the model %+v", i, cmd.Ask, told, model.Processes.Past())
		}
		if told.Lost {
			lost++
		}
		if strings.Contains(heard.Lines, "\n") {
			kinds++
		}
		if n := len(model.Processes.Told); n < before {
			lapsed++
		} else {
			before = n
		}
		before = len(model.Processes.Told)
		ids := [][]string{{"A", "C", "D"}, nil}[rand.IntN(2)]
		if told, known := model.Processes.Told[id]; known && rand.IntN(50) == 0 { // as if the clock had been set back since
			told.At += 5000
			model.Processes.Told[id] = told
			if err := s.Client().Eval(t.Context(), `
				local told, rest = string.match(redis.call('HGET', KEYS[1], ARGV[1]), '^(%d+)( .*)$')
				redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', told + 5000) .. rest)
				return redis.call('ZINCRBY', KEYS[1] .. ':ends', 5000, ARGV[1])`, []string{cmd.Key}, id).Err(); err != nil {
				t.Fatal(err)
			}
			ahead++
		}
		atFirst, answered := names(model, ids), names(m, ids)
		now = time.Now()                                                                          // of the same machine
		if atLast := names(model, ids); !within(answered, atFirst) || !within(atLast, answered) { // meanwhile some may be forgotten
			t.Fatalf("after beat %d the server named %q, the model %q and then %q", i, answered, atFirst, atLast)
		}
		if len(answered) > 3 {
			named++
		}
	}
	t.Logf("%d of 2000 beats heard of several; %d times some had lapsed, %d times many were named, %d were ahead, and %d had lost their data", kinds, lapsed, named, ahead, lost)
	if min(kinds, lapsed, named, lost, 2000-lost) < 20 || ahead == 0 {
		t.Error("too little happened")
	}
	redistest.RequireNoKeys(t, []*redistest.Server{s})
}

// past is an Admission that keeps what a server tells who comes.
type newcomer struct{ told }

func (*newcomer) KeyOfBeats() string { return "redlock:processes:{processes}" }

// greeted returns what the server tells a newcomer of its memory.
func greeted(t *testing.T, m *Master) protocol.Past {
	t.Helper()
	var n newcomer
	c, err := m.Connect(t.Context(), &n)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return n.Past
}

// TestEldestOfEachKind: however many processes of one kind there are, a master tells of the other kinds, too.
func TestEldestOfEachKind(t *testing.T) {
	t.Parallel()
	m := dial(t, redistest.Start(t, 1)[0].URL())
	beat := func(id, kind string, since int64) (heard []string) {
		cmd := &protocol.Command{Op: protocol.OpBeat, Key: "redlock:processes:{processes}",
			Ask: &protocol.Beat{ID: id, Number: 1, Life: time.Minute, Kind: kind, Since: since, About: "{}"}}
		if m.Do([]*protocol.Command{cmd}); cmd.Reply.Err != nil {
			t.Fatal(cmd.Reply.Err)
		}
		for line := range strings.Lines(cmd.Reply.Answer.(*protocol.Beats).Lines) {
			other, _, _ := strings.Cut(line, " ")
			heard = append(heard, other)
		}
		return heard
	}
	last := 2 * protocol.MaxOthers
	for i := range last + 1 {
		beat(fmt.Sprint("a", i), "many", 1000-int64(i))
	}
	beat("b", "more", 20)
	beat("c", "more", 10)
	if heard := beat("d", "none", -1); !slices.Equal(heard, []string{fmt.Sprint("a", last), "c"}) {
		t.Errorf("a master tells of %q, want the eldest of each kind", heard)
	}
}

// within reports whether all of these names are among those.
func within(these, those []string) bool {
	return !slices.ContainsFunc(these, func(name string) bool { return !slices.Contains(those, name) })
}
