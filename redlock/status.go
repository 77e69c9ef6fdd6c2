package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/hook"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Status is the state of a Locker at one moment, for operators.
type Status struct {
	Masters   []MasterStatus
	Quorum    int // how many masters must grant a lock
	Available int // how many masters are well
	Asked     int // how many masters get acquires now: available ones, slow ones, and masters that work again, but not long enough to count as available
	Held      int // how many keys this Locker has locked; each slot of a key counts
	Waiting   int // how many calls wait for their locks
	// OldestHold is when the oldest of these locks was taken; zero if there is none.
	OldestHold time.Time
	// DroppedLines and DroppedEvents count log lines, and calls of the Observer, that were dropped because the log or the Observer was too slow,
	// blocked or panicked. Neither can delay a lock.
	DroppedLines, DroppedEvents uint64
	// RefusedResults counts results that were not stored or read, because too many other results were under way.
	RefusedResults uint64
	// Err is the reason why no lock can be taken, however many masters are available: another process has other masters, or the Locker is closed. It
	// is nil otherwise.
	Err error
	// Disagreements are the processes that share masters with this one, but have a different set of masters, max TTL or concurrency: see WithMaxTTL
	// and WithConcurrency. Of several processes with the same settings, one is listed. The list is empty until the masters have told about other
	// processes.
	Disagreements []Disagreement
}

// Ready reports whether this Locker can take locks now.
func (s Status) Ready() bool { return s.Err == nil && s.Asked >= s.Quorum }

// MasterStatus is a Locker's knowledge about one master. The console shows these fields, under their names for JSON.
type MasterStatus struct {
	Name  string      `json:"name"` // the name, without credentials
	State MasterState `json:"state"`
	Err   error       `json:"-"`              // the reason why the master isn't available; nil while it is, or while a connection is being made
	Since time.Time   `json:"since,omitzero"` // when the master stopped being available; zero while Err is nil
	Until time.Time   `json:"until,omitzero"` // when the master will grant locks again without anybody's help; zero if that isn't known

	RoundTrip       time.Duration `json:"-"`                           // how long the last reply took, including the server's own time; 0 while the master is unreachable or hung
	ClockOffset     time.Duration `json:"-"`                           // how far the master's clock is ahead of ours, which may be negative; 0 if RoundTrip is 0
	Late            float64       `json:"late_ratio,omitempty"`        // the share of the last minute's replies that came after the timeout; 0 if fewer than three did
	Version         string        `json:"version,omitempty"`           // the server's version; empty if the server wasn't reached yet, or doesn't report one
	MaxmemoryPolicy string        `json:"maxmemory_policy,omitempty"`  // the server's maxmemory-policy, which should be noeviction
	Evicts          bool          `json:"evicts,omitempty"`            // whether the server, with this policy, deletes locks when its memory is full
	UsedMemory      int64         `json:"used_memory_bytes,omitempty"` // the server's used memory in bytes, at most some 10 s old; 0 if unknown
	Maxmemory       int64         `json:"maxmemory_bytes,omitempty"`   // the server's maxmemory in bytes; 0 if it has no limit, or doesn't report one

	CertificateUntil time.Time `json:"certificate_until,omitzero"` // when the first certificate of the server's chain ends; zero without TLS
}

// MasterState is one word for whether a master grants locks, and why not.
type MasterState string

// The states of a master.
const (
	MasterAvailable   MasterState = "available"
	MasterConnecting  MasterState = "connecting"  // the first connection, or the next one, is being made
	MasterUnreachable MasterState = "unreachable" // no connection can be made
	MasterHung        MasterState = "hung"        // the master doesn't answer within the timeout
	MasterSlow        MasterState = "slow"        // half of the last minute's replies came after the timeout; the state ends when less than a quarter do
	MasterRestarted   MasterState = "restarted"   // the master may have forgotten locks: see WithRestartGuard
	MasterReplaced    MasterState = "replaced"    // the master has become a different server, or has different data: see ErrReplaced
	MasterClock       MasterState = "clock"       // the master's clock has jumped, was set back, or is wrong
	MasterRefuses     MasterState = "refuses"     // the master refuses locks, because of rights or memory, or because it is loading data; it is asked again every second
	MasterExcluded    MasterState = "excluded"    // the master has no vote until somebody acts: it is a replica, a server that is named twice, …
)

// Status returns the Locker's present state. It asks no master, and doesn't block. The facts about an idle master are a few seconds old at most.
func (l *Locker) Status() Status {
	status := l.mastersStatus()
	status.Err = l.heart.refusal()
	status.Disagreements = slices.Concat(l.heart.disagreements(), l.differs.Load().disagreements())
	status.Held, status.Waiting, status.OldestHold = l.gates.count()
	status.DroppedLines, status.DroppedEvents = l.reporter.lines.Count(), l.reporter.events.Count()
	status.RefusedResults = l.voters.RefusedResults()
	if l.ends() {
		status.Err = ErrClosed
	}
	return status
}

// mastersStatus returns what a Status has about the masters.
func (l *Locker) mastersStatus() Status {
	status := Status{Quorum: l.voters.Quorum, Masters: make([]MasterStatus, len(l.voters.Streams))}
	for i, s := range l.voters.Streams {
		state := s.State()
		status.Masters[i] = masterStatus(state)
		if state.Asked {
			status.Asked++
		}
		if status.Masters[i].State == MasterAvailable {
			status.Available++
		}
	}
	return status
}

func masterStatus(s link.State) MasterStatus {
	status := MasterStatus{
		Name:            s.Name,
		Err:             s.Err,
		Since:           s.Since,
		RoundTrip:       s.RoundTrip,
		ClockOffset:     s.ClockOffset,
		Late:            s.Late,
		Version:         s.Server.Version,
		MaxmemoryPolicy: s.Server.Memory.Policy,
		Evicts:          s.Server.Memory.Evicts(),
		UsedMemory:      s.Server.Memory.Used,
		Maxmemory:       s.Server.Memory.Max,

		CertificateUntil: s.Server.CertificateUntil,
	}
	status.State, status.Until = classify(s)
	if status.State == MasterUnreachable || status.State == MasterHung {
		status.RoundTrip, status.ClockOffset = 0, 0
	}
	return status
}

// classify returns a master's state and, if that is known, when the master will grant locks again.
func classify(s link.State) (state MasterState, until time.Time) {
	var guard *admission.GuardError
	if until = s.CountsFrom; errors.As(s.Err, &guard) {
		until = guard.Until
	}
	switch {
	case s.Err == nil && !s.Connected:
		return MasterConnecting, until
	case s.Err == nil:
		return MasterAvailable, until
	case errors.Is(s.Err, link.ErrHung):
		return MasterHung, until
	case errors.Is(s.Err, link.ErrSlow):
		return MasterSlow, until
	case errors.Is(s.Err, ErrReplaced):
		return MasterReplaced, until
	case errors.Is(s.Err, ErrRestarted), guard != nil:
		return MasterRestarted, until
	case errors.Is(s.Err, admission.ErrClockJump):
		return MasterClock, s.Resumes
	case errors.Is(s.Err, admission.ErrClockBack), errors.Is(s.Err, admission.ErrClockSkew):
		return MasterClock, until
	case errors.Is(s.Err, admission.ErrNoVote):
		return MasterExcluded, until
	case errors.Is(s.Err, protocol.ErrUnusable):
		return MasterRefuses, until
	}
	return MasterUnreachable, until
}

// announceTime is how long an announcer waits: after the start for masters that neither answer nor fail, and later for a quorum that may soon be back.
const announceTime = 3 * time.Second

// announcer logs how many masters are available: once after the start, when no quorum of them takes locks any more, and when a quorum is available
// again. Each change of a single master has a line of its own.
type announcer struct {
	told  bool      // the first line was logged
	lacks bool      // the last line said that there is no quorum
	since time.Time // since when there is something to tell; zero if there is nothing
}

// look logs a line if one is due. A recovery counts only when the masters' recoveries have been reported (see link.State), so a master that comes and
// goes causes few lines.
func (a *announcer) look(status Status, now time.Time, log *slog.Logger) {
	lacks := status.Asked < status.Quorum || a.lacks && status.Available < status.Quorum
	if a.told && lacks == a.lacks {
		a.since = time.Time{}
		return
	}
	if a.since.IsZero() {
		a.since = now
	}
	var others []string
	waits := false
	for _, m := range status.Masters {
		waits = waits || m.State == MasterConnecting
		if m.State != MasterAvailable {
			others = append(others, fmt.Sprintf("%s (%s)", m.Name, m.State))
		}
	}
	if a.told { // what is gone may soon be back, and what is back may soon be complete
		waits = len(others) > 0
	}
	if waits && now.Sub(a.since) < announceTime {
		return
	}
	level, args := slog.LevelInfo, []any(nil)
	if len(others) > 0 {
		args = []any{"needed", status.Quorum, "unavailable", strings.Join(others, ", ")}
	}
	switch {
	case lacks:
		level = slog.LevelError
	case len(others) > 0 && !a.lacks:
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, fmt.Sprintf("%d of %d masters available", status.Available, len(status.Masters)), args...)
	*a = announcer{told: true, lacks: lacks}
}

// Disagreement says how another process differs from this one.
type Disagreement struct {
	Process string        `json:"process"`           // the process's instance name; empty if it isn't known
	Masters string        `json:"masters,omitempty"` // the process's masters, with their run IDs; empty if they are the same
	MaxTTL  time.Duration `json:"-"`                 // the process's max TTL; 0 if it is the same
	Refused bool          `json:"refused,omitempty"` // the process gets no locks, because processes with other masters were there first
	// Concurrency is how many may hold a key according to calls of the other process, if calls of this process have a different number: see
	// WithConcurrency. 0 if no such call was met in a line within the last minute.
	Concurrency int `json:"concurrency,omitempty"`
}

func disagreementOf(d heartbeat.Difference) Disagreement {
	return Disagreement{Process: d.Process, Masters: d.Masters, MaxTTL: d.MaxTTL, Refused: d.Refused}
}

// disagreements returns this difference if it was noticed in the last minute.
func (o *otherSlots) disagreements() []Disagreement {
	if o == nil || time.Since(o.at) > time.Minute {
		return nil
	}
	return []Disagreement{{Concurrency: o.n}}
}

// keys returns the keys with this prefix, as inspect.Keys does.
func (l *Locker) keys(prefix string) []*hook.KeyStatus {
	prefix = lockname.Of(prefix)
	keys := l.gates.keys(func(key string) bool { return strings.HasPrefix(lockname.Of(key), prefix) })
	return sortedRefs(keys, func(a, b *hook.KeyStatus) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot))
	})
}

// keys returns the status of all keys that are wanted.
func (g *gates) keys(wanted func(key string) bool) []hook.KeyStatus {
	var parts [][]hook.KeyStatus // a single slice would be copied again and again as it grows
	for some := range g.seen() {
		part := make([]hook.KeyStatus, 0, len(some))
		for i := range some {
			if wanted(some[i].key()) {
				part = some[i].appendStatuses(part)
			}
		}
		parts = append(parts, part)
	}
	return slices.Concat(parts...)
}

// statusOf returns the status of one key. full is the name of its lock on the masters.
func (g *gates) statusOf(full string) []hook.KeyStatus {
	g.mu.Lock()
	at := g.byKey[full]
	if at == nil {
		g.mu.Unlock()
		return nil
	}
	seen := at.see()
	g.mu.Unlock()
	seen.dropEnded()
	return seen.appendStatuses(nil)
}

// appendStatuses appends the statuses of the gate: one for each held lock, or one if no lock is held.
func (s *seenGate) appendStatuses(all []hook.KeyStatus) []hook.KeyStatus {
	first, key := len(all), s.key()
	for _, k := range s.locks {
		all = append(all, hook.KeyStatus{Key: key, Label: k.call.label, Request: k.call.request, Held: true, Since: k.since(), Until: k.ownUntil(), Fence: k.Fence()})
		if k.attempt.Slots > 1 {
			all[len(all)-1].Slot, all[len(all)-1].Slots = int(k.attempt.Slot), int(k.attempt.Slots)
		}
	}
	line := s.waiting
	switch {
	case len(s.locks) > 1:
		slices.SortFunc(all[first:], func(a, b hook.KeyStatus) int { return cmp.Compare(a.Slot, b.Slot) })
	case len(s.locks) == 0 && len(line) == 0:
		return all
	case len(s.locks) == 0:
		all = append(all, hook.KeyStatus{Key: key, Label: line[0].label, Request: line[0].request, Since: line[0].began})
		line = line[1:]
	}
	all[first].Waiting = len(s.waiting)
	for _, p := range line {
		all[first].Line = append(all[first].Line, hook.Call{Label: p.label, Since: p.began, Request: p.request})
	}
	return all
}

// sortedRefs returns pointers to the keys, in the order of compare. Pointers are faster to sort, because a KeyStatus is large.
func sortedRefs(keys []hook.KeyStatus, compare func(a, b *hook.KeyStatus) int) []*hook.KeyStatus {
	refs := make([]*hook.KeyStatus, len(keys))
	for i := range keys {
		refs[i] = &keys[i]
	}
	slices.SortFunc(refs, compare)
	return refs
}

// longTurns returns a text for the masters: a line for each key that a call has held, or waited for, for longer than longTurn. The oldest is first.
func (l *Locker) longTurns(now time.Time) string {
	keys := l.gates.keys(func(string) bool { return true })
	keys = slices.DeleteFunc(keys, func(k hook.KeyStatus) bool { return now.Sub(k.Since) <= longTurn })
	return heartbeat.TurnLines(func(yield func(hash string, turn heartbeat.Turn) bool) {
		for _, k := range sortedRefs(keys, func(a, b *hook.KeyStatus) int { return a.Since.Compare(b.Since) }) {
			turn := turnOf(hook.Call{Label: k.Label, Since: k.Since, Request: k.Request})
			turn.Fence, turn.Wait = k.Fence, k.Waiting
			for _, c := range k.Line {
				turn.Line = append(turn.Line, turnOf(c))
			}
			if !yield(lockname.Hash(k.Key), turn) {
				return
			}
		}
	})
}

func turnOf(c hook.Call) heartbeat.Turn {
	return heartbeat.Turn{Label: c.Label, Since: c.Since.UnixMilli(), Request: c.Request}
}

// longTurn is how long a call must have held a key, or waited for it, before the process tells the masters: shorter turns are over before anybody
// asks.
const longTurn = 2 * time.Second

// keyspace is the Keyspace of an inside.Locker.
func (l *shared) keyspace() string {
	names := append([]string{l.prefix}, l.servers...)
	slices.Sort(names[1:])
	if l.heart == nil {
		names = append(names, l.voters.Process)
	}
	return strings.Join(names, "\n")
}

// sharesMasters reports whether two Lockers have the same masters and prefix, and so see the same locks.
func (l *shared) sharesMasters(with *shared) bool {
	return l == with || l.keyspace() == with.keyspace()
}

// disagreements returns how other processes differ from this one.
func (h *heart) disagreements() (all []Disagreement) {
	if h == nil {
		return nil
	}
	if differs := h.differs.Load(); differs != nil {
		for _, d := range *differs {
			all = append(all, disagreementOf(d))
		}
	}
	return all
}
