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

// wire is the version of the locks' format on the masters: the keys, their content, and the scripts. Raise it if processes of the previous version
// would not exclude processes of this version. Versions from before this number send none.
const wire = 2

// About has the facts that a process sends about itself with each beat. Name, Version, Started and Ended are only for people.
type About struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Wire    int      `json:"wire"`
	Started int64    `json:"started_ms"` // when the process started, by the process's clock
	MaxTTL  int64    `json:"max_ttl_ms"`
	Covers  int64    `json:"covers_ms"`       // the longest max TTL of another process for which the restart guard of this process is long enough
	Ended   bool     `json:"ended,omitempty"` // the process has closed its Locker in order, and this is its last beat; only shown to people
	Masters []Server `json:"servers"`         // versions without a wire read a different field, find no masters there, and so refuse to lock
}

type Server struct {
	Name string `json:"name"`          // the master's name in this process
	Run  string `json:"run,omitempty"` // the run ID of the server, or unknown; empty if the server wasn't reached at the last beat, so that it can't vote
}

// unknown stands for a server that was reached but doesn't report its run ID, and for a Redis Cluster. It may equal any server.
const unknown = "?"

// runs returns the run IDs of the servers that can vote for the process.
func (a *About) runs() (runs []string) {
	for _, m := range a.Masters {
		if m.Run != "" {
			runs = append(runs, m.Run)
		}
	}
	return runs
}

// union returns the smallest number of servers that the two sets together can have.
func union(a, b []string) int {
	common, wild := 0, 0 // wild counts the unknown servers, each of which may equal any server of the other set
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

// runsOf returns the run IDs of the servers that can vote for another process. If a server of the same name has restarted since the process sent its
// beat, its present run counts, because the former run has no vote any more.
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

// compatible reports whether each quorum of another process shares a server with each quorum of this one.
func (j *Judge) compatible(p *Process) bool {
	return j.own.Wire == p.Wire && quorum.Overlap(len(j.own.Masters), len(p.Masters), union(j.own.runs(), j.runsOf(p)))
}

// same reports whether another process may have the same masters, even if neither process reaches all of them.
func (j *Judge) same(p *Process) bool {
	return j.own.Wire == p.Wire && len(j.own.Masters) == len(p.Masters) && union(j.own.runs(), j.runsOf(p)) <= len(p.Masters)
}

// alike reports whether another process may have the same masters and settings, so that neither needs reports about the other.
func (j *Judge) alike(p *Process) bool {
	return j.same(p) && j.own.MaxTTL == p.MaxTTL && j.own.Covers == p.Covers
}

// life returns how long a master remembers a process after its last beat. By then no lock of the process is left, and no fence of it is ahead of any
// master's clock.
func (a *About) life() time.Duration { return ms(a.MaxTTL) + protocol.FenceTTL }

func (a *About) text() string {
	text, _ := json.Marshal(a) // strings and numbers always encode
	return string(text)
}

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
	Number int64
	Since  int64     // the time since which the process locks, on the masters' clocks in microseconds; or begins, or waits
	Told   time.Time // when a master got the process's last beat, or a moment later

	text   string
	met    time.Time // when a master first reported the process to this one
	apart  time.Time // when the process last locked with incompatible masters, or when a master may have forgotten that it does; zero for never
	unlike time.Time // the time since which the process's servers have been different; zero if they are the same
}

// differs reports whether a process has had other servers for two beats. Before that, it may not have noticed that a server has restarted.
func (p *Process) differs() bool { return !p.unlike.IsZero() && p.Told.Sub(p.unlike) >= Settled }

// The values of Since of a process that doesn't lock.
const (
	waits  = -1
	begins = 0 // the process is about to lock
)

// Parse reads one line of a master's reply, which came at now, to OpBeat or OpNames. ok is false if the line isn't of this version.
func Parse(line string, now time.Time) (p Process, ok bool) {
	return parse(line, now, nil)
}

// parse is Parse. It doesn't decode the About of a known process again if the text is the same.
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

// Difference says how another present process differs from this one.
type Difference struct {
	Process string
	Masters string        // the process's masters; empty if they are the same
	MaxTTL  time.Duration // the process's max TTL; 0 if it is the same
	Refused bool          // the process may not lock, because incompatible processes were there first
}

func (j *Judge) Difference(p *Process) (d Difference) {
	differs := p.differs()
	if p.met.IsZero() { // a master has just reported the process, so its earlier servers aren't known
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

// Differences returns how other processes differ from this one, according to the masters' replies. Of several processes with the same difference, it
// returns one.
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
