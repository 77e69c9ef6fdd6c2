package redlock

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/sets"
)

// Disagreement is what another process has otherwise than this one.
type Disagreement struct {
	Process string        // its instance name; empty if it isn't known
	Masters string        // its masters, with their run IDs; empty if they are the same
	MaxTTL  time.Duration // its max TTL; 0 if it is the same
	Refused bool          // it gets no locks, because processes with other masters were there first
	// Concurrency is how many may hold a key by its calls, where calls of this one say otherwise: see WithConcurrency. 0 if they weren't met in
	// a line within the last minute.
	Concurrency int
}

func disagreementOf(d sets.Difference) Disagreement {
	return Disagreement{Process: d.Process, Masters: d.Masters, MaxTTL: d.MaxTTL, Refused: d.Refused}
}

// Process is a process that shares masters with this one, as they know it.
type Process struct {
	Instance string        // see WithInstance
	Version  string        // of this module; empty if it is older than this knowledge, as are the next four fields then
	Since    time.Time     // when its Locker began, by its own clock
	Seen     time.Time     // when a master heard of it last: every two seconds while it lives
	Masters  []string      // without credentials
	MaxTTL   time.Duration // see WithMaxTTL
	Own      bool          // it is this Locker
	// Disagreement is what it has otherwise than this one, or nil.
	Disagreement *Disagreement
}

// Processes asks the masters which processes share them: each with a Locker that registers there, with this prefix. One that has gone is
// forgotten its max TTL and 5 s after it was seen last. They are sorted by their names, at most 1,000. It waits for the masters as
// Inspect does. The error is a *QuorumError, beside what the others know, if fewer than a quorum have answered. Masters in memory know
// of no processes.
func (l *Locker) Processes(ctx context.Context) ([]Process, error) {
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	if l.sets == nil {
		return nil, nil
	}
	replies, end := l.ask(ctx, protocol.Command{Op: protocol.OpNames, Key: l.sets.key}, nil) // all: one with other masters may be known to one alone
	if l.stopped(context.Background(), nil) != nil {
		return nil, ErrClosed
	}
	return l.processes(replies, time.Now()), l.tooFew(ctx, l.sets.key, replies, end)
}

// processes puts together what the masters know.
func (l *Locker) processes(replies []protocol.Reply, now time.Time) (all []Process) {
	latest := make(map[string]sets.Process) // by ID
	l.sets.mu.Lock()
	defer l.sets.mu.Unlock()
	for _, reply := range replies {
		for line := range strings.Lines(reply.Lines) {
			p, ok := l.sets.judge.Process(strings.TrimSuffix(line, "\n"))
			if former, known := latest[p.ID]; ok && (!known || p.Age < former.Age) {
				latest[p.ID] = p
			}
		}
	}
	for id, p := range latest {
		shown := Process{Instance: p.Name, Version: p.Version, Since: p.Since, Masters: p.Masters, MaxTTL: p.MaxTTL, Own: id == l.id}
		if p.Version != "" {
			shown.Seen = now.Add(-p.Age)
		}
		if d := disagreementOf(p.Difference); !shown.Own && (d.Masters != "" || d.MaxTTL != 0) {
			shown.Disagreement = &d
		}
		all = append(all, shown)
	}
	slices.SortFunc(all, func(a, b Process) int {
		return cmp.Or(strings.Compare(a.Instance, b.Instance), a.Since.Compare(b.Since))
	})
	return all
}

// disagreements returns what other processes have otherwise.
func (r *registry) disagreements() (all []Disagreement) {
	if r == nil {
		return nil
	}
	if differs := r.differs.Load(); differs != nil {
		for _, d := range *differs {
			all = append(all, disagreementOf(d))
		}
	}
	return all
}
