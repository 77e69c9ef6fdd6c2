package redlock

import (
	"encoding/json"
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
	Covers  int64    `json:"covers_ms"`       // the longest TTL of any process that its restart guard covers
	Waits   bool     `json:"waits,omitempty"` // the process doesn't lock until another set has gone
}

// member is a master of a set.
type member struct {
	Name  string `json:"name"`
	RunID string `json:"id,omitempty"` // of the server that was reached last; empty if none ever was
	Up    bool   `json:"up,omitempty"` // it is connected now
}

// life returns how long a set counts after a process was last seen with it: until then a lock of the process
// may be left, or its fence be ahead of another master's clock.
func (s *set) life() time.Duration { return ms(s.MaxTTL) + protocol.FenceTTL }

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// text returns the set as the masters keep it: its life in milliseconds, and JSON.
func (s *set) text() string {
	slices.SortFunc(s.Masters, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
	text, _ := json.Marshal(s) // strings and numbers always encode
	return strconv.FormatInt(s.life().Milliseconds(), 10) + " " + string(text)
}

func parseSet(text string) (*set, error) {
	_, text, _ = strings.Cut(text, " ")
	s := new(set)
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("not a set of masters: %w", err)
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

// common returns how many masters two sets may have in common at the most. Those that were never reached may
// be any. Those with the same name and another run ID are the same if one process hasn't noticed a restart
// yet; lenient counts them as such.
func (s *set) common(other *set, lenient bool) int {
	ours, theirs, n := slices.Clone(s.Masters), slices.Clone(other.Masters), 0
	pair := func(same func(a, b member) bool) {
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
	pair(func(a, b member) bool { return a.RunID != "" && a.RunID == b.RunID })
	pair(func(a, b member) bool { return a.Name == b.Name && (lenient || !a.Up || !b.Up) })
	pair(func(a, b member) bool { return (a.RunID == "") != (b.RunID == "") })
	pair(func(a, b member) bool { return a.RunID == "" && b.RunID == "" })
	return n
}

// same reports whether the two sets may be the same.
func (s *set) same(other *set, lenient bool) bool {
	n := s.common(other, lenient)
	return n == len(s.Masters) && n == len(other.Masters)
}

// meets reports whether every majority of one set shares a master with every majority of the other, as far
// as is known. Then no two processes can hold a lock, and fences grow from one to the other. Sets that
// differ by one additional master meet.
func (s *set) meets(other *set, lenient bool) bool {
	return majoritiesMeet(len(s.Masters), len(other.Masters), s.common(other, lenient))
}

// majoritiesMeet reports whether every majority of n masters shares one with every majority of m masters, if
// the two sets have that many in common.
func majoritiesMeet(n, m, common int) bool { return n/2+1+m/2+1 > n+m-common }
