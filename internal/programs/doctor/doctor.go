// Package doctor looks at the masters of a configuration: whether they can be reached, are fit for locks, and are independent.
// It needs no running process, opens no listener, and takes no lock. On each master it writes one key, of a name that nobody
// else uses, and removes it.
package doctor

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Settings are the settings of a configuration that the masters must suit.
type Settings struct {
	connect.Options // a MaxTTL of 0 isn't compared with that of others
	Masters         []redlock.Master
	LeastTTL        time.Duration // the shortest ttl of all rules
	Remember        bool          // a rule remembers responses
	Patience        time.Duration // how long to wait for each reply; 0 for DefaultPatience
	Running         []Running
}

// Running is a locker of the process that the configuration is for, as it runs now.
type Running struct {
	Instance, Prefix string
	Masters          []string
}

// DefaultPatience is how long to wait for a reply of a master, unless the settings say otherwise.
const DefaultPatience = 2 * time.Second

// stages is how many waits of the length of Patience one master may cause: to connect and greet, to measure, to look, and to try.
const stages = 4

// Longest is how long Examine takes at most, with this patience.
func Longest(patience time.Duration) time.Duration { return stages * patience }

// Report has the facts and the findings about all masters.
type Report struct {
	Masters  []MasterReport `json:"masters"`
	Quorum   int            `json:"quorum"`
	Voting   int            `json:"voting"` // how many masters would grant locks now, as far as can be told from here
	Findings []Finding      `json:"findings"`
}

// MasterReport has the facts about one master. A fact that could not be learned is empty.
type MasterReport struct {
	Name        string  `json:"name"`
	Votes       bool    `json:"votes"`             // whether it would grant locks now, as far as can be told from here
	Version     string  `json:"version,omitempty"` // with the server's name if it isn't Redis
	RoundTrip   float64 `json:"round_trip_seconds,omitempty"`
	ClockOffset float64 `json:"clock_offset_seconds"` // how far its clock is ahead of this machine's
	Uptime      int64   `json:"uptime_seconds,omitempty"`
	// CertificateUntil is the time until which the master's certificate, and all that vouch for it, are valid.
	CertificateUntil time.Time `json:"certificate_until,omitzero"`
	MaxmemoryPolicy  string    `json:"maxmemory_policy,omitempty"`
	Persistence      string    `json:"persistence,omitempty"` // none, rdb, aof everysec and so on
}

// Level says how much a finding matters.
type Level string

const (
	Error   Level = "error"   // the master has no vote, or may break a guarantee
	Warning Level = "warning" // locks work, but not as they should, or not in every case
	Note    Level = "note"    // a fact to know, or one that could not be found out
)

// Finding is one thing that was found, and the advice about it.
type Finding struct {
	Level  Level  `json:"level"`
	Check  Check  `json:"check"`
	Master string `json:"master,omitempty"` // empty if it is about all of them
	Text   string `json:"text"`
	Advice string `json:"advice"`

	excludes bool // whether the master has no vote because of it
}

// Check is the subject of a finding.
type Check string

const (
	Reachability Check = "reachability"
	Latency      Check = "latency"
	Version      Check = "version"
	Mode         Check = "mode"
	Independence Check = "independence"
	Persistence  Check = "persistence"
	Eviction     Check = "eviction"
	Rights       Check = "rights"
	Clock        Check = "clock"
	Uptime       Check = "uptime"
	Certificate  Check = "certificate"
	Number       Check = "number"
	Processes    Check = "processes"
)

// Examine looks at all masters at the same time.
func Examine(ctx context.Context, s Settings) Report {
	if s.Patience == 0 {
		s.Patience = DefaultPatience
	}
	ctx, cancel := context.WithTimeout(ctx, Longest(s.Patience))
	defer cancel()
	all := make([]*examination, len(s.Masters))
	var group sync.WaitGroup
	for i, m := range s.Masters {
		group.Go(func() { all[i] = examined(s, m.String(), inside.Examine(ctx, m, s.Prefix, s.Patience)) })
	}
	group.Wait()
	return report(s, all)
}

func report(s Settings, all []*examination) Report {
	r := Report{Quorum: len(all)/2 + 1, Findings: []Finding{}}
	r.Findings = append(append(r.Findings, number(all)...), clusters(all)...)
	findings := make([][]Finding, len(all))
	for i, x := range all {
		findings[i] = x.judge()
	}
	for _, f := range together(s, all) {
		for i, x := range all {
			if x.name == f.Master {
				findings[i] = append(findings[i], f)
			}
		}
		if f.Master == "" {
			r.Findings = append(r.Findings, f)
		}
	}
	for i, x := range all {
		m := x.summary()
		m.Votes = true
		for _, f := range findings[i] {
			f.Master = cmp.Or(f.Master, x.name)
			m.Votes = m.Votes && !f.excludes
			r.Findings = append(r.Findings, f)
		}
		if m.Votes {
			r.Voting++
		}
		r.Masters = append(r.Masters, m)
	}
	return r
}

// Healthy reports whether there is no error and no warning.
func (r Report) Healthy() bool {
	for _, f := range r.Findings {
		if f.Level != Note {
			return false
		}
	}
	return true
}
