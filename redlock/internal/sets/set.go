package sets

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// set is the masters of a process, with what other processes must know to lock beside it. Sets are compared
// by the servers' run IDs: their names may differ between processes.
type set struct {
	Masters []member `json:"masters"`
	MaxTTL  int64    `json:"max_ttl_ms"`
	Covers  int64    `json:"covers_ms"` // the longest TTL of any process that its restart guard covers
	State   State    `json:"state,omitempty"`
	Waited  bool     `json:"waited,omitempty"` // it has waited for another set, and gives way to those that claim and haven't

	by string // the process that has registered it last, as far as is known
}

// member is a master of a set.
type member struct {
	Name  string `json:"name"`
	RunID string `json:"id,omitempty"`  // of the server that was reached last; empty if none ever was
	Was   string `json:"was,omitempty"` // the run that was reached before that one
	Up    bool   `json:"up,omitempty"`  // it is connected now

	started time.Time // not later than that, by our clock and what the server says
}

// reach notes which server is reached now.
func (m *member) reach(server protocol.Server) {
	if m.RunID != "" && m.RunID != server.RunID {
		m.Was = m.RunID
	}
	m.RunID, m.Up = server.RunID, server.RunID != ""
	m.started = server.Received.Add(time.Second - server.Uptime)
}

// restarted reports whether the two may be one server before and after a restart, or after two, whatever they are called.
func (m member) restarted(other member) bool {
	return m.Was != "" && (m.Was == other.RunID || m.Was == other.Was) || other.Was != "" && other.Was == m.RunID
}

// life returns how long a set counts after a process was last seen with it: until then a lock of the process
// may be left, or its fence be ahead of another master's clock.
func (s *set) life() time.Duration { return ms(s.MaxTTL) + protocol.FenceTTL }

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// text returns the set as the masters keep it: its life in milliseconds, and JSON.
func (s *set) text() string {
	sorted := *s
	sorted.Masters = slices.SortedFunc(slices.Values(s.Masters), func(a, b member) int { return strings.Compare(a.Name, b.Name) })
	text, _ := json.Marshal(sorted) // strings and numbers always encode
	return strconv.FormatInt(s.life().Milliseconds(), 10) + " " + string(text)
}

func parseSet(text string) (*set, error) {
	_, text, _ = strings.Cut(text, " ")
	s := new(set)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("not a set of masters: %w", err)
	}
	if most := protocol.MaxTime.Milliseconds() / 2; min(s.MaxTTL, s.Covers) < 0 || max(s.MaxTTL, s.Covers) > most {
		return nil, errors.New("not a set of masters: its times are none")
	}
	return s, nil
}

// String names the masters, for the log.
func (s *set) String() string {
	names := make([]string, len(s.Masters))
	for i, m := range s.Masters {
		names[i] = m.Name
		if m.RunID != "" {
			names[i] += " (run id " + m.RunID[:min(8, len(m.RunID))] + ")"
		}
	}
	return strings.Join(names, ", ")
}

// The ways in which a member of each of two sets may be the same server.
var (
	sameRun     = func(a, b member) bool { return a.RunID != "" && a.RunID == b.RunID }
	restarted   = member.restarted
	sameName    = func(a, b member) bool { return a.Name == b.Name }
	oneUnknown  = func(a, b member) bool { return (a.RunID == "") != (b.RunID == "") }
	bothUnknown = func(a, b member) bool { return a.RunID == "" && b.RunID == "" }
	oneIsAway   = func(a, b member) bool { return (restarted(a, b) || sameName(a, b)) && (!a.Up || !b.Up) }
)

// common returns how many masters two sets may have in common at the most. Those that were never reached may
// be any. Those with another run ID but the same name, or of which one process says that it had the other's run ID before,
// are the same if one process hasn't noticed a restart yet; lenient counts them as such.
func (s *set) common(other *set, lenient bool) int {
	if lenient {
		return s.pairs(other, sameRun, restarted, sameName, oneUnknown, bothUnknown)
	}
	return s.pairs(other, sameRun, oneIsAway, oneUnknown, bothUnknown)
}

// pairs returns how many masters of two sets are the same in one of these ways, of which the first count first.
func (s *set) pairs(other *set, ways ...func(a, b member) bool) (n int) {
	ours, theirs := slices.Clone(s.Masters), slices.Clone(other.Masters)
	for _, same := range ways {
		ours = slices.DeleteFunc(ours, func(a member) bool {
			i := slices.IndexFunc(theirs, func(b member) bool { return same(a, b) })
			if i < 0 {
				return false
			}
			theirs = slices.Delete(theirs, i, i+1)
			n++
			return true
		})
	}
	return n
}

// same reports whether the two sets may be the same.
func (s *set) same(other *set, lenient bool) bool {
	n := s.common(other, lenient)
	return n == len(s.Masters) && n == len(other.Masters)
}

// quorum returns how many masters a process with this set needs.
func (s *set) quorum() int { return len(s.Masters)/2 + 1 }

// meets reports whether every majority of one set shares a master with every majority of the other, as far
// as is known. Then no two processes can hold a lock, and fences grow from one to the other. Sets that
// differ by one additional master meet.
func (s *set) meets(other *set, lenient bool) bool {
	return MajoritiesMeet(len(s.Masters), len(other.Masters), s.common(other, lenient))
}

// MajoritiesMeet reports whether every majority of n masters shares one with every majority of m masters, if
// the two sets have that many in common.
func MajoritiesMeet(n, m, common int) bool { return n/2+1+m/2+1 > n+m-common }
