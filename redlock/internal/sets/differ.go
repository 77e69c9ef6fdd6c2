package sets

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Difference is what a process that is there now has otherwise than this one.
type Difference struct {
	Process string
	Masters string        // its masters; empty if they are the same
	MaxTTL  time.Duration // its max TTL; 0 if that is the same
	Refused bool          // it may not lock, because others were there first
}

// differing is the set of a process that is there now, with other masters, or only another max TTL.
type differing struct {
	set     *set
	masters bool
}

// Differences returns what other processes have otherwise, as far as the masters have told. Of those that have registered the
// same, one is named.
func (j *Judge) Differences() (all []Difference) {
	for _, d := range j.differs {
		all = append(all, j.difference(d.set, d.masters))
	}
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(strings.Compare(a.Process, b.Process), strings.Compare(a.Masters, b.Masters), cmp.Compare(a.MaxTTL, b.MaxTTL))
	})
	return slices.Compact(all)
}

func (j *Judge) difference(s *set, masters bool) (d Difference) {
	d.Process, d.Refused = s.process(), s.State == Waits
	if masters {
		d.Masters = s.String()
	}
	if s.MaxTTL != j.own.MaxTTL {
		d.MaxTTL = ms(s.MaxTTL)
	}
	return d
}

// process names that which has registered the set.
func (s *set) process() string { return cmp.Or(s.by, "a process of another version") }

// Process is a process as a master knows it.
type Process struct {
	ID, Name, Version string
	Since             time.Time     // when it began, by its own clock; zero if it doesn't say
	Age               time.Duration // since it was seen
	Masters           []string      // their names
	MaxTTL            time.Duration
	State             State
	Difference        Difference // from this process
}

// About is what a process says about itself.
func About(since time.Time, version string) string {
	return fmt.Sprint(since.UnixMilli(), " ", strings.Join(strings.Fields(version), "-"))
}

// Process reads what a master says about a process.
func (j *Judge) Process(line string) (p Process, ok bool) {
	words := strings.SplitN(line, " ", 6)
	if len(words) < 2 {
		return p, false
	}
	p.ID, p.Name = words[0], words[1]
	if len(words) < 6 { // of an older version
		return p, true
	}
	s, err := parseSet(words[5])
	if err != nil {
		return p, true
	}
	age, _ := protocol.ParseNumber(words[2], protocol.MaxTime.Milliseconds())
	since, _ := protocol.ParseNumber(words[3], protocol.MaxTime.Milliseconds())
	p.Age, p.Since, p.Version = ms(age), time.UnixMilli(since), words[4]
	for _, m := range s.Masters {
		p.Masters = append(p.Masters, m.Name)
	}
	s.by = p.Name
	p.MaxTTL, p.State, p.Difference = ms(s.MaxTTL), s.State, j.difference(s, j.differs[words[5]].masters || !j.own.same(s, true))
	return p, true
}
