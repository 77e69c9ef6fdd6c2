package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Processes has the beats that processes have sent to the master.
type Processes struct {
	Told map[string]Told // the last beat of each process, by the process's ID
	Born int64           // the beginning of the master's memory, in microseconds; 0 before the first greeting or beat
	Mark int64           // the latest time that the master's clock is known to have shown, in microseconds
	Lost int64           // equals Born if a process has reported that it knew the master before Born; otherwise it differs from Born
}

// Told is the last beat of a process, and the time At, in milliseconds, when it came.
type Told struct {
	At int64
	protocol.Beat
}

func (t *Told) ends() int64 { return t.At + t.Life.Milliseconds() }

// ahead reports whether the clock was set back since the beat came. Then Beat sets the time of the beat to the present.
func (t *Told) ahead(now int64) bool { return t.At-now > 1000 }

func (p *Processes) Clone() Processes {
	return Processes{maps.Clone(p.Told), p.Born, p.Mark, p.Lost}
}

// Greet answers a process that starts. The master's memory begins with the first greeting or beat.
func (p *Processes) Greet(us int64) protocol.Past {
	defer p.begin(us)
	return p.Past()
}

// Past returns the facts about the master's memory that a starting process learns.
func (p *Processes) Past() protocol.Past {
	return protocol.Past{Known: true, Born: p.Born, Lost: p.Lost != 0 && p.Lost == p.Born}
}

func (p *Processes) begin(us int64) {
	if p.Born == 0 {
		p.Born, p.Told = us, make(map[string]Told)
	}
}

func (p *Processes) Beat(b *protocol.Beat, us int64) protocol.Reply {
	now := us / 1000
	p.begin(us)
	if b.Knew != 0 && b.Knew != p.Born {
		p.Lost = p.Born
	}
	p.Mark = max(p.Mark, b.Shown)
	if last, known := p.Told[b.ID]; !known || last.Number < b.Number {
		p.Told[b.ID] = Told{now, *b}
	}
	maps.DeleteFunc(p.Told, func(_ string, t Told) bool { return t.ends() <= now })
	all := slices.SortedFunc(maps.Values(p.Told), func(a, b Told) int {
		return cmp.Or(cmp.Compare(min(1, b.Since), min(1, a.Since)), strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Since, b.Since), strings.Compare(a.ID, b.ID))
	})
	var lines []string
	var last Told // the beat of the last reported process
	ahead := false
	for _, t := range all {
		if named := t.Kind == last.Kind && min(1, t.Since) == min(1, last.Since); !named && t.ID != b.ID && len(lines) < protocol.MaxOthers {
			lines, last, ahead = append(lines, t.line(now)), t, ahead || t.ahead(now)
		}
	}
	for _, id := range b.Asks {
		if t, known := p.Told[id]; known {
			lines, ahead = append(lines, t.line(now)), ahead || t.ahead(now)
		}
	}
	for id, t := range p.Told {
		if ahead && t.ahead(now) {
			t.At = now
			p.Told[id] = t
		}
	}
	return protocol.Reply{Time: us, Answer: &protocol.Beats{Mark: p.Mark, Born: p.Born, Lines: strings.Join(lines, "\n")}}
}

func (t *Told) line(now int64) string {
	return fmt.Sprintf("%s %d %d %d %s", t.ID, max(0, now-t.At), t.Number, t.Since, t.About)
}

func (p *Processes) names(ask *protocol.Names, us int64) protocol.Reply {
	var lines, turns []string
	for id, t := range p.Told {
		if t.ends() <= us/1000 || len(ask.IDs) > 0 && !slices.Contains(ask.IDs, id) {
			continue
		}
		lines = append(lines, t.line(us/1000))
		for line := range strings.Lines(t.Turns) {
			if hash, turn, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); hash == ask.Hash && hash != "" {
				turns = append(turns, id+" "+turn)
			}
		}
	}
	return protocol.Reply{Answer: &protocol.Named{Lines: strings.Join(lines, "\n"), Turns: strings.Join(turns, "\n")}}
}
