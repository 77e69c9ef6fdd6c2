package inspect

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Process is a process that the masters know: the given Locker's own, or one that has masters in common with it.
type Process struct {
	Instance string        `json:"instance"`          // the name of the process: see redlock.WithInstance
	Version  string        `json:"version,omitempty"` // the version of this module; empty if the process doesn't tell it
	Since    time.Time     `json:"since,omitzero"`    // when the process's Locker began, by the process's clock
	Seen     time.Time     `json:"seen,omitzero"`     // when the process's last beat came to a master; each process sends one every two seconds
	Masters  []string      `json:"masters,omitempty"` // the names of the process's masters, without credentials
	MaxTTL   time.Duration `json:"-"`                 // see redlock.WithMaxTTL
	Own      bool          `json:"own"`               // the process is the given Locker's
	Ended    bool          `json:"ended,omitempty"`   // the process has closed its Locker in order
	// Disagreement says how the process differs from the given Locker; nil if it doesn't.
	Disagreement *redlock.Disagreement `json:"-"`
}

// Processes asks the masters for the processes that share them: each has a Locker on them with this prefix. A master forgets a process when its max
// TTL and 5 s have passed since its last beat. The processes are sorted by name, at most 1,000. Processes waits for the masters as Key does. If fewer
// than a quorum have answered, it returns the processes that some masters know, and a *redlock.QuorumError. Masters in memory know no processes.
func Processes(ctx context.Context, l *redlock.Locker) ([]Process, error) {
	in, err := enter(ctx, l)
	if err != nil {
		return nil, err
	}
	replies, err := in.names(ctx, new(protocol.Names), nil) // ask all masters, because a process with other masters may be known to only one of them
	latest := make(map[string]heartbeat.Process)            // by the process's ID
	for _, reply := range replies {
		for p := range processesIn(reply) {
			if former, known := latest[p.ID]; !known || p.Told.After(former.Told) {
				latest[p.ID] = p
			}
		}
	}
	var all []Process
	for id, p := range latest {
		shown := Process{Instance: p.Name, Version: p.Version, Since: time.UnixMilli(p.Started), Seen: p.Told, MaxTTL: time.Duration(p.MaxTTL) * time.Millisecond, Own: id == in.Process, Ended: p.Ended}
		for _, m := range p.Masters {
			shown.Masters = append(shown.Masters, m.Name)
		}
		if d := in.Difference(&p); !shown.Own && d != (heartbeat.Difference{}) {
			shown.Disagreement = &redlock.Disagreement{Process: d.Process, Masters: d.Masters, MaxTTL: d.MaxTTL, Refused: d.Refused}
		}
		all = append(all, shown)
	}
	slices.SortFunc(all, func(a, b Process) int {
		return cmp.Or(strings.Compare(a.Instance, b.Instance), a.Since.Compare(b.Since))
	})
	return all, err
}

// names asks the masters for processes.
func (in *inside) names(ctx context.Context, ask *protocol.Names, done func(protocol.Reply) bool) ([]protocol.Reply, error) {
	return in.ask(ctx, protocol.Command{Op: protocol.OpNames, Key: protocol.Processes(in.Prefix), Ask: ask}, done)
}

// processesIn yields the processes that a master has named.
func processesIn(reply protocol.Reply) iter.Seq[heartbeat.Process] {
	return func(yield func(heartbeat.Process) bool) {
		named, ok := reply.Answer.(*protocol.Named)
		if !ok {
			return
		}
		now := time.Now()
		for line := range strings.Lines(named.Lines) {
			if p, ok := heartbeat.Parse(strings.TrimSuffix(line, "\n"), now); ok && !yield(p) {
				return
			}
		}
	}
}

// nameProcesses replaces the IDs of processes in views of one key by their names, if any master knows the names. It adds the turns that these
// processes have told the masters. This process's own turns, and the number of the key's slots, come from the Locker.
func (in *inside) nameProcesses(ctx context.Context, key string, views ...*View) {
	if len(views) == 0 {
		return
	}
	names, turns := map[string]string{in.Process: in.Instance}, make(map[string][]told)
	for _, k := range in.StatusOf(key) {
		turns[in.Process] = append(turns[in.Process], told{k.Fence, Turn{Call{k.Label, k.Since, (*Request)(k.Request)}, k.Waiting, callsOf(k.Line)}})
		for _, v := range views {
			v.Slots = max(v.Slots, k.Slots)
		}
	}
	var unknown []string
	for _, v := range views {
		v.processes(func(id *string, _ **Turn, _ uint64) {
			if names[*id] == "" && *id != "" && !slices.Contains(unknown, *id) {
				unknown = append(unknown, *id)
			}
		})
	}
	if left := len(unknown); left > 0 {
		_, _ = in.names(ctx, &protocol.Names{IDs: unknown, Hash: lockname.Hash(key)}, func(reply protocol.Reply) (done bool) {
			for p := range processesIn(reply) {
				if names[p.ID] == "" {
					names[p.ID] = p.Name
					left--
				}
			}
			if named, ok := reply.Answer.(*protocol.Named); ok {
				for line := range strings.Lines(named.Turns) {
					id, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
					if t := heartbeat.ParseTurn(text); t != nil {
						turns[id] = append(turns[id], toldOf(t))
					}
				}
			}
			return left <= 0
		})
	}
	for _, v := range views {
		v.processes(func(id *string, turn **Turn, fence uint64) {
			*turn = choose(turns[*id], fence)
			*id = cmp.Or(names[*id], *id)
		})
	}
}

// processes calls f for each process in the view, with a pointer to its ID, a pointer to its turn, and the fence of its lock, or 0.
func (v *View) processes(f func(id *string, turn **Turn, fence uint64)) {
	f(&v.Holder, &v.Turn, v.Fence)
	for i := range v.Masters {
		m := &v.Masters[i]
		f(&m.Holder, new(*Turn), m.Fence)
		for j := range m.Queue {
			f(&m.Queue[j].Process, &m.Queue[j].Turn, 0)
		}
	}
}

// Turn is a call that holds a key, or waits for it, in the words of its process.
type Turn struct {
	Call
	Waiting int    `json:"waiting"`        // how many calls of that process wait for the key
	Line    []Call `json:"line,omitempty"` // the calls that wait behind this one, the next one first; for other processes, at most 20
}

// String returns the call as one line of text, and nothing for a turn that isn't known.
func (t *Turn) String() string {
	if t == nil {
		return ""
	}
	return t.Call.String()
}

// More returns how many calls of the process wait besides the calls in Line. If waits is true, the turn's own call waits as well, and isn't counted.
func (t *Turn) More(waits bool) int {
	n := t.Waiting - len(t.Line)
	if waits {
		n--
	}
	return max(0, n)
}

// told is a turn with the fence of its lock; the fence is 0 for a call that waits.
type told struct {
	fence uint64
	Turn
}

func toldOf(t *heartbeat.Turn) told {
	turn := told{t.Fence, Turn{Call: callOf(t), Waiting: t.Wait}}
	for i := range t.Line {
		turn.Line = append(turn.Line, callOf(&t.Line[i]))
	}
	return turn
}

func callOf(t *heartbeat.Turn) Call {
	return Call{Label: t.Label, Since: time.UnixMilli(t.Since), Request: (*Request)(t.Request)}
}

// choose returns the turn whose lock has this fence or, if fence is 0, the first call that waits. It returns nil if there is none.
func choose(turns []told, fence uint64) *Turn {
	for i, t := range turns {
		if t.fence == fence {
			return &turns[i].Turn
		}
	}
	for _, t := range turns {
		if fence == 0 && len(t.Line) > 0 { // the process's first call holds a slot, and further calls wait
			return &Turn{Call: t.Line[0], Waiting: t.Waiting, Line: t.Line[1:]}
		}
	}
	return nil
}
