package sets

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// view is what one master last said.
type view struct {
	sent time.Time // when it was asked; zero if it hasn't answered yet
	now  int64     // its clock then, in microseconds
	born int64     // since when it remembers sets, by that clock; 0 if it can't be asked
	met  time.Time // since when it is known that this memory is another one than before; zero if it is the first
	run  string    // the server
	uses []use
	kept []use // what it said of sets in use before it forgot everything

	told   time.Time // when it was last told of our set in this state, and remembers that; zero if never
	absent Absence   // why it hasn't answered the claim, as far as is known
	text   string    // what was last sent to it
}

// age is for how long the master remembers sets, as far as that counts: a spare server that has taken the place of another one may
// remember for long, but others have registered there only since then.
func (v *view) age() time.Duration {
	age := time.Duration(v.now-v.born) * time.Microsecond
	if v.met.IsZero() {
		return age
	}
	return min(age, v.sent.Sub(v.met))
}

// at returns what the master's clock showed at a time of ours, or a moment later.
func (v *view) at(t time.Time) int64 { return v.now - v.sent.Sub(t).Microseconds() }

// use is a set of masters as one master knows it: since when, and when a process last registered it.
type use struct {
	text        string
	set         *set
	since, seen int64
}

// Registration is what a master is told of a process's set.
type Registration struct {
	Text   string
	Former string        // takes the place of that
	Age    time.Duration // for how long the set has been in use

	sent  time.Time
	state State
}

// Register returns what to tell a master now.
func (j *Judge) Register(now time.Time, master int) Registration {
	j.lapse(now)
	g := Registration{Text: j.own.text(), Former: j.views[master].text, sent: now, state: j.state}
	if j.state == Uses {
		g.Age = max(now.Sub(j.since), 0)
	}
	j.views[master].text = g.Text
	return g
}

// Reached notes which server a master's address leads to now, and until when it was excluded for a loss of its data: that isn't
// a loss once more.
func (j *Judge) Reached(now time.Time, master int, server protocol.Server, lostUntil time.Time) {
	if v := &j.views[master]; v.sent.Before(lostUntil) {
		v.run = "excluded" // none is called so
	}
	for i := range j.own.Masters {
		former := &j.own.Masters[i]
		if i == master {
			continue
		}
		if former.RunID == server.RunID { // the server has moved here
			former.RunID, former.Up = "", false
		}
		if former.Was == server.RunID { // and not restarted there
			former.Was = ""
		}
	}
	m := &j.own.Masters[master]
	other, down := m.RunID != server.RunID, !m.Up
	m.reach(server)
	if other && j.state == Claims { // what has been claimed is less than this
		j.claim(now)
	}
	if other || down { // compare the sets again before the server votes
		j.Look(now)
		j.again = true
	}
}

// Answered takes a master's reply. It reports whether the server has lost its data since the last one.
func (j *Judge) Answered(now time.Time, master int, g Registration, reply protocol.Reply) (lost bool) {
	m, v := &j.own.Masters[master], &j.views[master]
	if !m.Up && m.RunID != "" { // others must not take it for one that is away
		m.Up, j.again = true, true
	}
	former := *v
	v.sent, v.now, v.born, v.run, v.uses = g.sent, reply.Time, reply.Born, m.RunID, j.parse(reply.Lines, reply.Others)
	forgot := former.born != 0 && v.born != former.born
	if forgot {
		v.met = g.sent
	}
	v.keep(&former, forgot)
	if slices.ContainsFunc(v.uses, func(u use) bool { return u.text == g.Text }) { // its memory wasn't full
		j.hasHeard(v, g)
	}
	j.Look(now)
	return forgot && v.run == former.run && v.now-former.now < Memory.Microseconds()/2
}

// keep keeps what the master said before it forgot, until it has remembered for so long that a set of which it knows
// nothing is gone.
func (v *view) keep(former *view, forgot bool) {
	v.kept = former.kept
	if forgot {
		v.kept = slices.Concat(former.kept, former.uses)
	}
	v.kept = slices.DeleteFunc(v.kept, func(u use) bool {
		return u.set.State != Uses || v.age() > u.set.life()+settled || slices.ContainsFunc(v.uses, func(now use) bool { return now.text == u.text })
	})
	v.kept = v.kept[max(0, len(v.kept)-protocol.MaxSets):] // a master that forgets again and again would fill our memory
}

// hasHeard notes that a master remembers our set.
func (j *Judge) hasHeard(v *view, g Registration) {
	switch {
	case g.Text != j.own.text():
		j.again = true
		if j.state != Uses || g.state != Uses {
			return
		}
	case g.state == Claims && g.sent.Before(j.claimed):
		j.again = true
		return
	}
	v.told, v.absent = g.sent, Silent
}

// Absence is why a master has given no reply.
type Absence int

const (
	Silent  Absence = iota // it may answer others, and in a moment this process, too
	Gone                   // nothing listens at its address
	Guarded                // it was reached, and will be asked when its restart guard has ended, as by all others
)

// Failed notes that a master has given no reply.
func (j *Judge) Failed(now time.Time, master int, g Registration, why Absence) {
	j.own.Masters[master].Up = false
	if g.sent.Before(j.claimed) {
		why, j.again = Silent, true
	}
	j.views[master].absent = why
	j.Look(now)
}

// KnowsNothing treats a master as one that knows no set: it refuses to tell, or is a Redis Cluster whose node with the sets is
// down, while locks whose keys are on the other nodes can be taken all the same.
func (j *Judge) KnowsNothing(now time.Time, master int) {
	j.views[master] = view{sent: now, told: now, text: j.views[master].text}
	j.Look(now)
}

// Refused notes that a master doesn't let this process register.
func (j *Judge) Refused(now time.Time, master int, err error) {
	j.noteOnce("refused", "master refuses to register this process's set of masters, so it can't be compared with those of other processes: grant this user what docs/masters.md lists, unless the error names another reason",
		"master", j.own.Masters[master].Name, "error", err)
	j.KnowsNothing(now, master)
}

// parse reads a master's list of sets, and that of the processes that have registered them.
func (j *Judge) parse(lines, others string) (uses []use) {
	parsed, by := make(map[string]*set), make(map[string]string)
	for line := range strings.Lines(others) {
		name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		by[text] = name
	}
	for line := range strings.Lines(lines) {
		since, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seen, text, _ := strings.Cut(rest, " ")
		s := j.parsed[text]
		if s == nil {
			var err error
			if s, err = parseSet(text); err != nil {
				continue // written by another version
			}
		}
		s.by = cmp.Or(by[text], s.by)
		parsed[text] = s
		u := use{text: text, set: s}
		u.since, _ = protocol.ParseNumber(since, protocol.MaxTime.Microseconds())
		u.seen, _ = protocol.ParseNumber(seen, protocol.MaxTime.Microseconds())
		uses = append(uses, u)
	}
	for _, v := range j.views {
		for _, u := range slices.Concat(v.uses, v.kept) {
			parsed[u.text] = u.set
		}
	}
	j.parsed = parsed
	return uses
}
