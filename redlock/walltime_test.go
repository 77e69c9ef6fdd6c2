package redlock

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestWallTime: where locks, the agent, its clients in Go and requests look at their own wall clock, which may be set at any time, is known, and
// does no harm.
func TestWallTime(t *testing.T) {
	wall := regexp.MustCompile(`\.(Unix(Milli|Micro|Nano)?\b|Round\(0\)|Date\b|Clock\(\)|Format\((time\.|"))`)
	allowed := map[string]string{ // functions
		"Past":      "a lease ends by either clock, because the monotonic one stands still while the host is suspended",
		"Offset":    "what Status shows",
		"Time":      "the proposal of a fence before any master has told its time, which masters clamp",
		"firstSeen": "the server's time",
		"turnOf":    "since when a turn lasts, to be shown",
		"newHeart":  "since when the process runs, to be shown",
		"before":    "past, of the time for which masters remember the process",
		"left":      "past, in the plugin for Traefik",
		"Until":     "past, behind an agent",
		"decide":    "since when the process locks, if no master tells its time",
		"Interrupt": "a time that has passed by any clock",
		"Check":     "the time in a signature, which the sender's clock has made: replay_window is for that",

		"tellMasters": "a time of the day, to be shown", "shutdown": "the same", "environment": "the same, of the first lease",
	}
	var files []string
	for _, in := range []string{"", "internal/admission/", "internal/vote/", "internal/link/", "internal/heartbeat/", "internal/cluster/", "internal/protocol/", "internal/redis/",
		"../agent/", "../middleware/", "../middleware/internal/*/", "../cmd/redlock/", "../traefik/"} {
		found, err := filepath.Glob(in + "*.go")
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", in, len(found), err)
		}
		files = append(files, found...)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "/examine.go") { // the command doctor
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if found := wall.Find(text[f.Pos()-1 : f.End()-1]); found != nil && allowed[f.Name.Name] == "" {
				t.Errorf("%s in %s uses %s: tickets, fences and leases go by the masters' clocks and our monotonic one", f.Name.Name, name, found)
			}
		}
	}
}

// TestMemoryOutlivesASetClock: masters in memory go on when the wall clock of their process is set.
func TestMemoryOutlivesASetClock(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		var set atomic.Bool
		now := func() time.Time {
			if !set.Load() {
				return time.Now()
			}
			return suspended(t, time.Now().Add(step), -step)
		}
		var masters []Master
		for _, name := range []string{"1", "2", "3"} {
			masters = append(masters, Master{newMemory(name, now)})
		}
		clock := masters[0].impl.(*memory.Master).Clock
		before := clock()
		l, err := New(masters)
		if err != nil {
			t.Fatal(err)
		}
		lock := func() (fence uint64) {
			k, err := l.Lock(t.Context(), "key", WithMastersWait(0))
			if err != nil {
				t.Fatalf("after a step of %v: %v", step, err)
			}
			fence = k.Fence()
			if err := k.Unlock(); err != nil {
				t.Error(err)
			}
			return fence
		}
		fence := lock()
		set.Store(true)
		if next := lock(); next <= fence {
			t.Errorf("after a step of %v: fence %d after %d", step, next, fence)
		}
		if passed := clock().Round(0).Sub(before.Round(0)); passed < 0 || passed > time.Hour/2 {
			t.Errorf("after a step of %v: %v have passed on a master", step, passed)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTicketOfTheFuture: calls that came while the masters' clocks were a minute ahead aren't behind all others for that minute
// when these are right again, nor are those that come later.
func TestTicketOfTheFuture(t *testing.T) {
	var ahead atomic.Int64
	var masters []Master
	for _, name := range []string{"1", "2", "3"} {
		masters = append(masters, MasterOf(memory.New(name, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })))
	}
	l, err := New(masters, WithTimeout(5*time.Second)) // what is asked of a master in memory takes a goroutine
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	shows := func(d time.Duration) {
		ahead.Store(int64(d))
		for off := time.Hour; off.Abs() > time.Minute/4; {
			if t.Context().Err() != nil {
				t.Fatal("the Locker doesn't learn what the masters' clocks show")
			}
			l.voters.AskAll(t.Context(), protocol.Command{Op: protocol.OpInspect, Key: "key"}, nil)
			now, _ := l.voters.Time()
			off = time.UnixMicro(now).Sub(time.Now().Add(d))
		}
	}
	later := func(ticket, than int64) time.Duration { return time.Duration(ticket-than) * time.Microsecond }
	c := &call{shared: &l.shared, began: time.Now()}
	shows(time.Minute)
	c.number()
	wrong := c.ticket
	if c.number(); c.ticket != wrong {
		t.Errorf("its ticket has changed by %v without a reason", later(c.ticket, wrong))
	}
	shows(0)
	c.number()
	if moved := later(wrong, c.ticket); (moved - time.Minute).Abs() > time.Minute/2 {
		t.Errorf("its ticket has moved by %v, want the minute", moved)
	}
	next := &call{shared: &l.shared, began: time.Now()}
	if next.number(); later(next.ticket, c.ticket).Abs() > time.Minute/2 {
		t.Errorf("the next call comes %v after it", later(next.ticket, c.ticket))
	}
}
