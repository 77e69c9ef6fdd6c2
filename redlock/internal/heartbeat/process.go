package heartbeat

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/quorum"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// wire is the number of the way to keep locks on the masters: the keys, their content, and the scripts. It is raised when the version before would
// not exclude this one's processes. Versions from before the number tell none.
const wire = 1

// About is what a process tells about itself with each beat. The rule needs the runs of its servers and the max TTL; the rest is for people.
type About struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Wire    int      `json:"wire"`
	Started int64    `json:"started_ms"` // by its own clock
	MaxTTL  int64    `json:"max_ttl_ms"`
	Covers  int64    `json:"covers_ms"` // the longest max TTL of any process that its restart guard covers
	Masters []Server `json:"servers"`   // versions without a wire read another name: to them we have no masters, so they refuse to lock
}

// Server is a master of a process.
type Server struct {
	Name string `json:"name"`          // by which this process knows it
	Run  string `json:"run,omitempty"` // the run ID of the server there, or unknown; empty if it wasn't reached at the last beat, and so can't vote
}

// unknown stands for a server that was reached but doesn't tell its run ID, and for a Redis Cluster: it may be any server.
const unknown = "?"

// runs returns the servers that can vote for the process.
func (a *About) runs() (runs []string) {
	for _, m := range a.Masters {
		if m.Run != "" {
			runs = append(runs, m.Run)
		}
	}
	return runs
}

// union returns the smallest possible number of servers in both sets together.
func union(a, b []string) int {
	common, wild := 0, 0 // wild: unknown servers, which may equal any of the other set
	for _, run := range slices.Concat(a, b) {
		if run == unknown {
			wild++
		}
	}
	for _, run := range a {
		if run != unknown && slices.Contains(b, run) {
			common++
		}
	}
	common += min(wild, len(a)-common, len(b)-common)
	return len(a) + len(b) - common
}

func (a *About) quorum() int { return quorum.Of(len(a.Masters)) }

// runsOf returns the servers that can vote for another process. If a server of the same name has started since the process told about it, its present
// run counts, because the former run has no vote any more.
func (j *Judge) runsOf(p *Process) (runs []string) {
	for _, server := range p.Masters {
		if server.Run == "" {
			continue
		}
		for i, m := range j.masters {
			if server.Name == j.own.Masters[i].Name && m.up && p.Told.Before(m.started) {
				server.Run = cmp.Or(m.run, unknown)
			}
		}
		runs = append(runs, server.Run)
	}
	return runs
}

// compatible reports whether each quorum of another process shares a server with each quorum of ours, on which both mean the same.
func (j *Judge) compatible(p *Process) bool {
	return j.own.Wire == p.Wire && quorum.Overlap(len(j.own.Masters), len(p.Masters), union(j.own.runs(), j.runsOf(p)))
}

// same reports whether another process may have the same masters, even if neither reaches all.
func (j *Judge) same(p *Process) bool {
	return j.own.Wire == p.Wire && len(j.own.Masters) == len(p.Masters) && union(j.own.runs(), j.runsOf(p)) <= len(p.Masters)
}

// alike reports whether another process may have the same masters and settings, so that neither must hear of the other.
func (j *Judge) alike(p *Process) bool {
	return j.same(p) && j.own.MaxTTL == p.MaxTTL && j.own.Covers == p.Covers
}

// life is how long a master remembers a process after its last beat: until then a lock of the process may be left, or its fence be ahead of another
// master's clock.
func (a *About) life() time.Duration { return ms(a.MaxTTL) + protocol.FenceTTL }

func (a *About) text() string {
	text, _ := json.Marshal(a) // strings and numbers always encode
	return string(text)
}

// String names the masters, for the log.
func (a *About) String() string {
	names := make([]string, len(a.Masters))
	for i, m := range a.Masters {
		names[i] = m.Name
		if m.Run != "" && m.Run != unknown {
			names[i] += " (run id " + m.Run[:min(8, len(m.Run))] + ")"
		}
	}
	return strings.Join(names, ", ")
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// Process is another process, as the masters know it.
type Process struct {
	About
	ID     string
	Number int64     // of the beat
	Since  int64     // since when it locks, on the masters' clocks in microseconds; or begins, or waits
	Told   time.Time // when a master heard that, or a moment later

	text   string    // of About
	met    time.Time // when this process heard of it
	apart  time.Time // when it last told that it locks with incompatible masters, or when a master may have forgotten that; zero for never
	unlike time.Time // since when it has had other servers; zero if it has the same
}

// differs reports whether a process still tells after two beats that it has other servers. Before that it may not have noticed that one of them has
// restarted.
func (p *Process) differs() bool { return !p.unlike.IsZero() && p.Told.Sub(p.unlike) >= Settled }

// The values of Since of a process that doesn't lock.
const (
	waits  = -1
	begins = 0 // it is about to lock
)

// Parse reads a line of a master's reply to OpBeat or OpNames that has come now. ok is false for a line of another version.
func Parse(line string, now time.Time) (p Process, ok bool) {
	return parse(line, now, nil)
}

// parse is Parse with processes that are known already.
func parse(line string, now time.Time, known map[string]*Process) (p Process, ok bool) {
	words := strings.SplitN(line, " ", 5)
	if len(words) < 5 {
		return p, false
	}
	if former := known[words[0]]; former != nil && former.text == words[4] {
		p.About = former.About
	} else if json.Unmarshal([]byte(words[4]), &p.About) != nil {
		return p, false
	}
	p.text = words[4]
	if most := protocol.MaxTime.Milliseconds() / 2; min(p.MaxTTL, p.Covers) < 0 || max(p.MaxTTL, p.Covers) > most {
		return p, false
	}
	ago, valid := protocol.ParseNumber(words[1], protocol.MaxTime.Milliseconds())
	number, counts := protocol.ParseNumber(words[2], protocol.MaxTime.Microseconds())
	since, locks := protocol.ParseNumber(words[3], protocol.MaxTime.Microseconds())
	if words[3] == strconv.Itoa(waits) {
		since, locks = waits, true
	}
	p.ID, p.Told, p.Number, p.Since = words[0], now.Add(-ms(ago)), number, since
	return p, valid && counts && locks
}

// Difference is how another present process differs from this one.
type Difference struct {
	Process string
	Masters string        // its masters; empty if they are the same
	MaxTTL  time.Duration // its max TTL; 0 if that is the same
	Refused bool          // it may not lock, because others were there first
}

// Difference returns how a process differs; the zero value if it doesn't.
func (j *Judge) Difference(p *Process) (d Difference) {
	differs := p.differs()
	if p.met.IsZero() { // a master has named it just now: its earlier settings aren't known
		differs = !j.same(p)
	}
	if differs || p.Since == waits && !j.compatible(p) {
		d.Masters = p.About.String()
	}
	if p.MaxTTL != j.own.MaxTTL {
		d.MaxTTL = ms(p.MaxTTL)
	}
	if d != (Difference{}) {
		d.Process, d.Refused = p.Name, p.Since == waits && !j.compatible(p)
	}
	return d
}

// Differences returns how other processes differ, by the masters' replies. It names one of equal processes.
func (j *Judge) Differences(now time.Time) (all []Difference) {
	for _, p := range j.known {
		if d := j.Difference(p); d != (Difference{}) && now.Sub(p.Told) <= Settled {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(strings.Compare(a.Process, b.Process), strings.Compare(a.Masters, b.Masters), cmp.Compare(a.MaxTTL, b.MaxTTL))
	})
	return slices.Compact(all)
}
