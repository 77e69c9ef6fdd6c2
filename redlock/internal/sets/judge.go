// Package sets judges whether a process may lock beside others that have other masters. A Judge is told what the masters
// answer, and what the time is; it has no clock, asks nobody, and starts nothing.
package sets

import (
	"log/slog"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	// Every is how often a process registers with each master. What a clock has shown before it is set back is known
	// up to so long ago; that is less than a fence is remembered for.
	Every = 2 * time.Second
	// Memory is how long a master remembers anything of sets after the last process has gone.
	Memory = time.Hour
	// settled is how old a memory is in which each process that is in use, and reaches that master, has registered again.
	settled = 2 * Every
	// grace is how long a claim waits for masters that don't answer, unless nothing listens there.
	grace = Every / 4
)

// State is how far a process may lock, with regard to the sets of others.
type State string

// The states. A process begins with a claim.
const (
	Uses   State = ""       // it may lock
	Claims State = "claims" // it may once all masters have heard so, and none knows of another set
	Waits  State = "waits"  // another set must go first
)

// Judge knows what the masters have said to one process, and decides whether that may lock. It isn't safe for
// concurrent use.
type Judge struct {
	own     set
	quorum  int
	state   State
	since   time.Time            // since when our set has been in use: that of the oldest process that has it
	claimed time.Time            // when the claim began
	began   time.Time            // when the process did
	looked  time.Time            // when the Judge was asked last
	views   []view               // by master
	refusal error                // why no lock may be taken now, or nil
	differs map[string]differing // those of processes with other masters or another max TTL, by their text

	parsed   map[string]*set
	doubted  map[string]doubt // sets that differ only if a restart has been noticed everywhere
	logged   map[string]bool  // what was logged already, by what it is about
	changing bool             // another set is in use
	notes    []Note
	again    bool // the masters must be told anew
}

// Note is something to be logged.
type Note struct {
	Level slog.Level
	Text  string
	Args  []any
}

// New returns the Judge of a process that starts now, with these masters.
func New(now time.Time, masters []string, maxTTL, covers time.Duration) *Judge {
	j := &Judge{
		own:    set{MaxTTL: maxTTL.Milliseconds(), Covers: covers.Milliseconds(), State: Claims},
		quorum: len(masters)/2 + 1, state: Claims, claimed: now, began: now, looked: now,
		views:  make([]view, len(masters)),
		parsed: make(map[string]*set), doubted: make(map[string]doubt), logged: make(map[string]bool),
	}
	for _, name := range masters {
		j.own.Masters = append(j.own.Masters, member{Name: name})
	}
	return j
}

// State returns how far the process may lock.
func (j *Judge) State() State { return j.state }

// Refusal returns why no lock may be taken now. It is nil too while the masters have not answered yet.
func (j *Judge) Refusal() error { return j.refusal }

// Notes returns what is to be logged since the last call.
func (j *Judge) Notes() []Note {
	notes := j.notes
	j.notes = nil
	return notes
}

// Again reports whether the masters must be told anew, since the last call.
func (j *Judge) Again() bool {
	again := j.again
	j.again = false
	return again
}

// Until returns until when a quorum of the masters certainly remembers the set, if it isn't told again: no lock may be taken that is
// valid for longer.
func (j *Judge) Until() time.Time {
	var told []time.Time
	for i := range j.views {
		if !j.views[i].told.IsZero() {
			told = append(told, j.views[i].told)
		}
	}
	if len(told) < j.quorum {
		return time.Time{}
	}
	slices.SortFunc(told, time.Time.Compare)
	life := j.own.life()
	return told[len(told)-j.quorum].Add(life - life/100 - 2*time.Millisecond) // clocks may run apart
}

// Look judges anew, as time has passed.
func (j *Judge) Look(now time.Time) {
	j.lapse(now)
	j.looked = now
	p := j.picture(now)
	j.differs = p.differs
	switch j.state {
	case Uses:
		if p.elder != nil {
			j.wait(p.elder, true)
			break
		}
		if j.since = j.elderOf(now, j.since); p.fresh >= j.quorum {
			j.noteChange(p.other)
		}
	case Claims:
		j.enter(now, &p)
	case Waits:
		switch {
		case p.used != nil:
			j.refusal = j.conflict(p.used)
		case p.claimed == nil && p.fresh >= j.quorum && !j.Until().IsZero():
			j.claim(now)
		}
	}
	if p.other != nil && !j.changing {
		j.changing = true
		j.note(slog.LevelInfo, "another set of masters is in use: the masters are being changed, or the configurations differ", "its masters", p.other.String(), "our masters", j.own.String(), "process", p.other.process())
	}
}

// enter has a claim become a use, if nobody is in the way.
func (j *Judge) enter(now time.Time, p *picture) {
	heard := before(now, j.Until())
	switch {
	case p.used != nil:
		j.wait(p.used, true)
	case heard && p.joins: // as one more process of a set that is in use
		j.use(now)
	case !j.complete(now):
	case !heard: // a claim that can't succeed must not be in the way of others
		j.wait(nil, j.own.Waited)
	case p.rival != nil:
		j.wait(p.rival, true)
	case p.claimed != nil: // that gives way
	case !p.settled && !p.follows:
		j.refusal = errUnsettled
	default:
		j.use(now)
	}
}

// complete reports whether all masters have answered the claim, but for those where nothing listens, or that are silent.
func (j *Judge) complete(now time.Time) bool {
	return now.Sub(j.claimed) >= grace || !slices.ContainsFunc(j.views, func(v view) bool { return v.told.IsZero() && v.absent != Gone })
}

// lapse ends a use that no quorum remembers for certain, and a claim that was made before the process was suspended:
// no master has been silent for as long as it seems.
func (j *Judge) lapse(now time.Time) {
	if j.state == Uses && !before(now, j.Until()) || j.state == Claims && !before(now, j.looked.Add(grace)) {
		j.claim(now)
	}
}

// before reports whether it is before t by both clocks: the monotonic one stops while the host is suspended.
func before(now, t time.Time) bool { return now.Before(t) && now.Round(0).Before(t.Round(0)) }

func (j *Judge) claim(now time.Time) {
	j.turn(Claims)
	j.claimed = now
}

func (j *Judge) wait(other *set, waited bool) {
	j.turn(Waits)
	j.own.Waited = waited
	if other != nil {
		j.refusal = j.conflict(other)
	}
}

func (j *Judge) use(now time.Time) {
	j.state, j.own.State, j.own.Waited, j.refusal, j.again = Uses, Uses, false, nil, true
	j.since = j.elderOf(now, now)
}

// turn takes another state, which no master knows yet.
func (j *Judge) turn(state State) {
	j.state, j.own.State, j.again = state, state, true
	for i := range j.views {
		j.views[i].told, j.views[i].absent = time.Time{}, Silent
	}
}

// elderOf returns since when our set has been in use, as a quorum of the masters says, if that is before since.
func (j *Judge) elderOf(now, since time.Time) time.Time {
	var known []time.Time
	for i := range j.views {
		v := &j.views[i]
		first := v.now
		for _, u := range v.uses {
			if u.set.State == Uses && j.same(v, u, now) {
				first = min(first, u.since)
			}
		}
		if first < v.now {
			known = append(known, v.sent.Add(-time.Duration(v.now-first)*time.Microsecond))
		}
	}
	if slices.SortFunc(known, time.Time.Compare); len(known) >= j.quorum && known[j.quorum-1].Before(since) {
		return known[j.quorum-1]
	}
	return since
}

// noteChange notes when a change of the masters is complete.
func (j *Judge) noteChange(other *set) {
	if other == nil && j.changing {
		j.changing = false
		j.note(slog.LevelInfo, "all processes have the same masters now, and no lock of another set is left: the next step of a change can be taken", "masters", j.own.String())
	}
}

func (j *Judge) note(level slog.Level, text string, args ...any) {
	j.notes = append(j.notes, Note{level, text, args})
}

// noteOnce notes an error, but only once for each thing that it is about.
func (j *Judge) noteOnce(about, text string, args ...any) {
	switch {
	case j.logged[about]:
		return
	case len(j.logged) > protocol.MaxSets:
		clear(j.logged)
	}
	j.logged[about] = true
	j.note(slog.LevelError, text, args...)
}
