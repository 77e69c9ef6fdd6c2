package traefik

import (
	"encoding/json"
	"sort"
	"strconv"
	"strings"
	"time"
)

// set has the masters of a process, as package redlock registers them (set.go).
type set struct {
	Masters []member `json:"masters"`
	MaxTTL  int64    `json:"max_ttl_ms"`
	Covers  int64    `json:"covers_ms"`
	Waits   bool     `json:"waits,omitempty"`
}

// member is a master of a set.
type member struct {
	Name  string `json:"name"`
	RunID string `json:"id,omitempty"`  // of the server that was reached last; empty if none ever was
	Was   string `json:"was,omitempty"` // the run that was reached before that one
	Up    bool   `json:"up,omitempty"`  // there is a connection now

	started time.Time `json:"-"` // not later than that, by our clock and what the server says; Yaegi makes JSON of all fields
}

// reach records which server is reached now.
func (m *member) reach(srv *server) {
	if m.RunID != "" && m.RunID != srv.runID {
		m.Was = m.RunID
	}
	m.RunID = srv.runID
	m.Up = srv.runID != ""
	m.started = srv.received.Add(time.Second - srv.uptime)
}

// life returns for how long a lock may be left after a process with this set was last seen.
func (s *set) life() time.Duration { return time.Duration(s.MaxTTL)*time.Millisecond + fenceTTL }

// text returns what is kept on the masters.
func (s *set) text() string {
	sorted := &set{MaxTTL: s.MaxTTL, Covers: s.Covers, Waits: s.Waits}
	sorted.Masters = append(sorted.Masters, s.Masters...)
	sort.Slice(sorted.Masters, func(i, k int) bool { return sorted.Masters[i].Name < sorted.Masters[k].Name })
	text, _ := json.Marshal(sorted)
	return strconv.FormatInt(int64(s.life()/time.Millisecond), 10) + " " + string(text)
}

func parseSet(text string) (*set, bool) {
	_, text, _ = strings.Cut(text, " ")
	s := &set{}
	err := json.Unmarshal([]byte(text), s)
	return s, err == nil
}

func (s *set) names() string {
	names := ""
	for i := 0; i < len(s.Masters); i++ {
		if i > 0 {
			names += ", "
		}
		names += s.Masters[i].Name
	}
	return names
}

// The ways in which two members may be the same.
const (
	sameRun       = iota
	sameRestarted // before and after one restart or two, whatever it is called
	sameName
	oneUnknown
	bothUnknown
)

func alike(a, b *member, how int, hoping bool) bool {
	switch how {
	case sameRun:
		return a.RunID != "" && a.RunID == b.RunID
	case sameRestarted:
		follows := a.Was != "" && (a.Was == b.RunID || a.Was == b.Was) || b.Was != "" && b.Was == a.RunID
		return follows && (hoping || !a.Up || !b.Up)
	case sameName:
		return a.Name == b.Name && (hoping || !a.Up || !b.Up)
	case oneUnknown:
		return (a.RunID == "") != (b.RunID == "")
	}
	return a.RunID == "" && b.RunID == ""
}

// common returns how many masters two sets may have in common at most: a master that was never reached may be any of the other set.
// With hoping, two of one name and different runs count as the same, and two of which one says that it was the other, because one
// process may not have noticed a restart yet.
func (s *set) common(other *set, hoping bool) int { return s.pairs(other, hoping, bothUnknown) }

func (s *set) pairs(other *set, hoping bool, last int) int {
	ours, theirs, n := make([]bool, len(s.Masters)), make([]bool, len(other.Masters)), 0
	for how := sameRun; how <= last; how++ {
		for i := 0; i < len(ours); i++ {
			for k := 0; k < len(theirs) && !ours[i]; k++ {
				if !theirs[k] && alike(&s.Masters[i], &other.Masters[k], how, hoping) {
					ours[i], theirs[k] = true, true
					n++
				}
			}
		}
	}
	return n
}

func (s *set) same(other *set, hoping bool) bool {
	n := s.common(other, hoping)
	return n == len(s.Masters) && n == len(other.Masters)
}

// succeeds reports whether the two are one set before and after restarts of its servers, in whichever order.
func (s *set) succeeds(other *set) bool {
	return len(s.Masters) == len(other.Masters) && s.pairs(other, true, sameRestarted) == len(s.Masters)
}

// meets reports whether each majority of one set may share a master with each of the other.
func (s *set) meets(other *set, hoping bool) bool {
	n, m := len(s.Masters), len(other.Masters)
	return n/2+1+m/2+1 > n+m-s.common(other, hoping)
}
