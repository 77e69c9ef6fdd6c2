package redlock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Status is the state of a Locker at one moment, for operators.
type Status struct {
	Masters   []MasterStatus
	Quorum    int // masters that must grant a lock
	Available int // masters that are well
	Asked     int // masters that may grant one now: well, slow, or coming and going
	Held      int // keys that this Locker has locked
	Waiting   int // calls that don't have their lock yet
	// OldestHold is since when the oldest lock is held; zero if there is none.
	OldestHold time.Time
	// DroppedLines and DroppedEvents count the log lines and the calls of the Observer that were dropped, because the log or the Observer was too
	// slow, blocked or panicked. Neither can delay a lock.
	DroppedLines, DroppedEvents uint64
	// RefusedResults counts results that were not stored or read, because too many others were under way.
	RefusedResults uint64
	// Err is why no lock can be taken although enough masters are available: another process has other masters, or the Locker is closed. It is nil
	// otherwise.
	Err error
	// Disagreements are the processes that share masters with this one, but have a different set of masters, max TTL or concurrency: see WithMaxTTL
	// and WithConcurrency. Of equal processes, one is named. It is empty while the masters haven't told yet.
	Disagreements []Disagreement
}

// Ready reports whether locks can be taken now.
func (s Status) Ready() bool { return s.Err == nil && s.Asked >= s.Quorum }

// MasterStatus is what a Locker knows of one master. The console shows it under the names for JSON.
type MasterStatus struct {
	Name  string      `json:"name"` // without credentials
	State MasterState `json:"state"`
	Err   error       `json:"-"`              // why it grants no locks; nil while it is available or being connected to
	Since time.Time   `json:"since,omitzero"` // since when it has granted none; zero while it is available or being connected to
	Until time.Time   `json:"until,omitzero"` // when it will grant locks again without anybody's help; zero if that isn't known

	RoundTrip       time.Duration `json:"-"`                           // of its last reply, including the server's time; 0 before the first, and while it is away
	ClockOffset     time.Duration `json:"-"`                           // how far its clock is ahead of ours, to within half a round trip; 0 as well
	Late            float64       `json:"late_ratio,omitempty"`        // the share of the last minute's replies that came after the timeout, from 0 to 1; 0 if fewer than three did
	Version         string        `json:"version,omitempty"`           // of the server; empty if it wasn't reached yet, or doesn't say
	MaxmemoryPolicy string        `json:"maxmemory_policy,omitempty"`  // of the server: it should be noeviction
	Evicts          bool          `json:"evicts,omitempty"`            // by that policy the server deletes locks when its memory is full
	UsedMemory      int64         `json:"used_memory_bytes,omitempty"` // of the server, in bytes, at most some 10 s ago; 0 if it doesn't say
	Maxmemory       int64         `json:"maxmemory_bytes,omitempty"`   // of the server, in bytes; 0 if it has no limit, or doesn't say

	CertificateUntil time.Time `json:"certificate_until,omitzero"` // until when the server's certificate is valid, with those that vouch for it; zero without TLS
}

// MasterState says in a word whether a master grants locks, and why not.
type MasterState string

// The states of a master.
const (
	MasterAvailable   MasterState = "available"
	MasterConnecting  MasterState = "connecting"  // the first connection, or the next one, is being made
	MasterUnreachable MasterState = "unreachable" // no connection can be made
	MasterHung        MasterState = "hung"        // it doesn't answer within the timeout
	MasterSlow        MasterState = "slow"        // half of the last minute's replies came after the timeout, or still a quarter
	MasterRestarted   MasterState = "restarted"   // it may have forgotten locks: see WithRestartGuard
	MasterReplaced    MasterState = "replaced"    // another server, or other data: see ErrReplaced
	MasterClock       MasterState = "clock"       // its clock has jumped, was set back, or is wrong
	MasterRefuses     MasterState = "refuses"     // it refuses locks: for rights, memory, or because it loads. It is tried every second
	MasterExcluded    MasterState = "excluded"    // somebody must act: a replica, a server that is named twice, …
)

// Status returns what the Locker knows now. It asks no master, and doesn't block. What is known of an idle
// master is a few seconds old at the most.
func (l *Locker) Status() Status {
	status := Status{Quorum: l.voters.Quorum, Err: l.heart.refusal(), Disagreements: slices.Concat(l.heart.disagreements(), l.differs.Load().disagreements()), Masters: make([]MasterStatus, len(l.voters.Streams))}
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
	status.Held, status.Waiting, status.OldestHold = l.gates.count()
	status.DroppedLines, status.DroppedEvents = l.reporter.lines.Count(), l.reporter.events.Count()
	status.RefusedResults = l.voters.RefusedResults()
	if l.ends() {
		status.Err = ErrClosed
	}
	return status
}

// masterStatus describes the state of a master.
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

// classify returns why a master takes no locks, and until when.
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

// announceTime is how long the line about the start waits for masters that neither answer nor fail.
const announceTime = 3 * time.Second

// announce logs once, after the start, how many masters are available, and reports whether it has. From then on the log has each change of a master.
func (l *Locker) announce(since time.Duration) (done bool) {
	status := l.Status()
	var others []string
	for _, m := range status.Masters {
		if m.State == MasterConnecting && since < announceTime {
			return false
		}
		if m.State != MasterAvailable {
			others = append(others, fmt.Sprintf("%s (%s)", m.Name, m.State))
		}
	}
	text := fmt.Sprintf("%d of %d masters available", status.Available, len(status.Masters))
	switch {
	case len(others) == 0:
		l.logger.Info(text)
	case status.Available >= status.Quorum:
		l.logger.Warn(text, "needed", status.Quorum, "unavailable", strings.Join(others, ", "))
	default:
		l.logger.Error(text, "needed", status.Quorum, "unavailable", strings.Join(others, ", "))
	}
	return true
}

// Disagreement is how another process differs from this one.
type Disagreement struct {
	Process string        `json:"process"`           // its instance name; empty if it isn't known
	Masters string        `json:"masters,omitempty"` // its masters, with their run IDs; empty if they are the same
	MaxTTL  time.Duration `json:"-"`                 // its max TTL; 0 if it is the same
	Refused bool          `json:"refused,omitempty"` // it gets no locks, because processes with other masters were there first
	// Concurrency is how many may hold a key by its calls, where calls of this one say otherwise: see WithConcurrency. 0 if they weren't met in
	// a line within the last minute.
	Concurrency int `json:"concurrency,omitempty"`
}

func disagreementOf(d heartbeat.Difference) Disagreement {
	return Disagreement{Process: d.Process, Masters: d.Masters, MaxTTL: d.MaxTTL, Refused: d.Refused}
}

// disagreements returns this difference if such a call was met a short while ago.
func (o *otherSlots) disagreements() []Disagreement {
	if o == nil || time.Since(o.at) > time.Minute {
		return nil
	}
	return []Disagreement{{Concurrency: o.n}}
}

// Process is a process that shares masters with this one, as the masters know it.
type Process struct {
	Instance string        `json:"instance"`          // see WithInstance
	Version  string        `json:"version,omitempty"` // of this module; empty, with the next four fields, if the process is too old to tell
	Since    time.Time     `json:"since,omitzero"`    // when its Locker began, by its own clock
	Seen     time.Time     `json:"seen,omitzero"`     // when a master heard of it last: every two seconds while it lives
	Masters  []string      `json:"masters,omitempty"` // without credentials
	MaxTTL   time.Duration `json:"-"`                 // see WithMaxTTL
	Own      bool          `json:"own"`               // it is this Locker
	// Disagreement is how it differs from this process, or nil.
	Disagreement *Disagreement `json:"-"`
}

// Processes asks the masters which processes share them: each with a Locker on them, with this prefix. A process that has gone is forgotten its max
// TTL and 5 s after masters saw it last. They are sorted by name, at most 1,000. It waits for the masters as Inspect does. The error is a
// *QuorumError, with the processes that some masters know, if fewer than a quorum have answered. Masters in memory know no processes.
func (l *Locker) Processes(ctx context.Context) ([]Process, error) {
	if err := l.usable(ctx); err != nil {
		return nil, err
	}
	if !l.calls.enter() {
		return nil, ErrClosed
	}
	defer l.calls.leave()
	if l.heart == nil {
		return nil, nil
	}
	replies, end := l.ask(ctx, protocol.Command{Op: protocol.OpNames, Key: l.heart.key, Ask: &protocol.Names{}}, nil) // all: one with other masters may be known to one alone
	if l.ends() {
		return nil, ErrClosed
	}
	return l.processes(replies, time.Now()), l.tooFew(ctx, l.heart.key, replies, end)
}

// processes merges the masters' knowledge.
func (l *Locker) processes(replies []protocol.Reply, now time.Time) (all []Process) {
	latest := make(map[string]heartbeat.Process) // by ID
	for _, reply := range replies {
		named, ok := reply.Answer.(*protocol.Named)
		if !ok {
			continue
		}
		for line := range strings.Lines(named.Lines) {
			p, ok := heartbeat.Parse(strings.TrimSuffix(line, "\n"), now)
			if former, known := latest[p.ID]; ok && (!known || p.Told.After(former.Told)) {
				latest[p.ID] = p
			}
		}
	}
	l.heart.mu.Lock()
	defer l.heart.mu.Unlock()
	for id, p := range latest {
		shown := Process{Instance: p.Name, Version: p.Version, Since: time.UnixMilli(p.Started), Seen: p.Told, MaxTTL: time.Duration(p.MaxTTL) * time.Millisecond, Own: id == l.voters.Process}
		for _, m := range p.Masters {
			shown.Masters = append(shown.Masters, m.Name)
		}
		if d := disagreementOf(l.heart.judge.Difference(&p)); !shown.Own && (d.Masters != "" || d.MaxTTL != 0) {
			shown.Disagreement = &d
		}
		all = append(all, shown)
	}
	slices.SortFunc(all, func(a, b Process) int {
		return cmp.Or(strings.Compare(a.Instance, b.Instance), a.Since.Compare(b.Since))
	})
	return all
}

// KeyStatus is a key that this process holds or waits for.
type KeyStatus struct {
	Key   string // as it was given to Lock
	Label string // of the call that holds it, or else of the first in line: see WithLabel
	Held  bool   // by this process
	// Since is when it was taken or, if it isn't held, when the first call in line came.
	Since   time.Time
	Until   time.Time // the end of the lease so far; zero if it isn't held
	Fence   uint64    // the lock's fencing token; 0 if it isn't held
	Request *Request  // of the same call as Label, see WithRequest; or nil
	Waiting int       // calls of this process without the lock; if the key has several holders, only the first one's status counts them
	Line    []Call    // of these, the calls behind the call above, the next first
	// Slot is the held slot, of Slots, if the key has more than one: see WithConcurrency. Each held slot has a KeyStatus.
	Slot, Slots int
}

// Keys returns the keys with this prefix that this process holds or waits for, sorted. It asks no master: Inspect
// shows what other processes hold. No call waits for it noticeably, so keys that come or go meanwhile may be missing.
func (l *Locker) Keys(prefix string) []KeyStatus {
	keys := l.gates.keys(func(full string) (string, bool) {
		key := protocol.KeyOf(l.prefix, full)
		return key, strings.HasPrefix(key, prefix)
	})
	sorted := sortedRefs(keys, func(a, b *KeyStatus) int { return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Slot, b.Slot)) })
	all := make([]KeyStatus, len(keys))
	for i, k := range sorted {
		all[i] = *k
	}
	return all
}

// keys returns the status of all keys that name accepts. name gets the key as it is on the masters.
func (g *gates) keys(name func(full string) (key string, accepted bool)) []KeyStatus {
	var parts [][]KeyStatus // a slice that grows would be copied again and again
	for some := range g.seen() {
		part := make([]KeyStatus, 0, len(some))
		for i := range some {
			if key, accepted := name(some[i].key); accepted {
				part = some[i].appendStatuses(part, key)
			}
		}
		parts = append(parts, part)
	}
	return slices.Concat(parts...)
}

// appendStatuses appends the statuses of the gate: one for each lock that is held, or else one.
func (s *seenGate) appendStatuses(all []KeyStatus, key string) []KeyStatus {
	first := len(all)
	for _, k := range s.locks {
		all = append(all, KeyStatus{Key: key, Label: k.call.label, Request: k.call.request, Held: true, Since: k.since(), Until: k.ownUntil(), Fence: k.Fence()})
		if k.attempt.Slots > 1 {
			all[len(all)-1].Slot, all[len(all)-1].Slots = int(k.attempt.Slot), int(k.attempt.Slots)
		}
	}
	line := s.waiting
	switch {
	case len(s.locks) > 1:
		slices.SortFunc(all[first:], func(a, b KeyStatus) int { return cmp.Compare(a.Slot, b.Slot) })
	case len(s.locks) == 0 && len(line) == 0:
		return all
	case len(s.locks) == 0:
		all = append(all, KeyStatus{Key: key, Label: line[0].label, Request: line[0].request, Since: line[0].began})
		line = line[1:]
	}
	all[first].Waiting = len(s.waiting)
	for _, p := range line {
		all[first].Line = append(all[first].Line, Call{Label: p.label, Since: p.began, Request: p.request})
	}
	return all
}

// sortedRefs returns pointers to the keys, in the order of compare, because moving the keys again and again would take long.
func sortedRefs(keys []KeyStatus, compare func(a, b *KeyStatus) int) []*KeyStatus {
	refs := make([]*KeyStatus, len(keys))
	for i := range keys {
		refs[i] = &keys[i]
	}
	slices.SortFunc(refs, compare)
	return refs
}

// longTurns returns the lines for the masters about calls that hold or wait long, the oldest first.
func (l *Locker) longTurns(now time.Time) string {
	keys := l.gates.keys(func(full string) (string, bool) { return protocol.KeyOf(l.prefix, full), true })
	keys = slices.DeleteFunc(keys, func(k KeyStatus) bool { return now.Sub(k.Since) <= longTurn })
	var text strings.Builder
	for _, k := range sortedRefs(keys, func(a, b *KeyStatus) int { return a.Since.Compare(b.Since) }) {
		stored := storedOf(*k)
		stored.Line = stored.Line[:min(len(stored.Line), storedLine)]
		line, _ := json.Marshal(stored) // strings and numbers always encode
		for ; len(line) > maxTurns/4 && len(stored.Line) > 0; line, _ = json.Marshal(stored) {
			stored.Line = stored.Line[:len(stored.Line)/2]
		}
		if text.Len()+len(line) > maxTurns {
			break
		}
		text.WriteString(KeyHash(k.Key) + " ")
		text.Write(line)
		text.WriteByte('\n')
	}
	return text.String()
}

// ownTurn returns the turn of this process on a slot of a key, or nil.
func (l *Locker) ownTurn(key string, slot int) *storedTurn {
	full := protocol.Key(l.prefix, key)
	l.gates.mu.Lock()
	at := l.gates.byKey[full]
	if at == nil {
		l.gates.mu.Unlock()
		return nil
	}
	seen := at.see()
	l.gates.mu.Unlock()
	seen.dropEnded()
	all := seen.appendStatuses(nil, key)
	if i := slices.IndexFunc(all, func(k KeyStatus) bool { return k.Slot == slot }); i >= 0 {
		return storedOf(all[i])
	}
	return nil
}

// Request is the request for which a lock is: see WithRequest. Each field may be empty.
type Request struct {
	Method  string `json:"m,omitempty"`
	Path    string `json:"p,omitempty"`
	ID      string `json:"i,omitempty"` // as in the header X-Request-Id
	TraceID string `json:"t,omitempty"` // of W3C Trace Context
	Client  string `json:"c,omitempty"` // its sender
	// Delivery is the key that the request has locked besides, so that nobody else works on the same delivery. Package middleware sets it.
	Delivery string `json:"d,omitempty"`
}

// Call is a call that holds a key, or waits for it.
type Call struct {
	Label   string    // see WithLabel
	Since   time.Time // when it got the lock, or, if it waits, when it came; by the clock of its process
	Request *Request  // see WithRequest; or nil
}

// Turn is a call that holds a key, or waits for it, as its process describes it.
type Turn struct {
	Call
	Waiting int    // calls of that process that wait for the key
	Line    []Call // of these, the calls behind this one, the next first; other processes see at most 20
}

// storedTurn is a Turn as the masters keep it.
type storedTurn struct {
	Label string `json:"l,omitempty"`
	Since int64  `json:"s"` // in milliseconds
	Fence uint64 `json:"f,omitempty"`
	Wait  int    `json:"w,omitempty"`
	*Request
	Line []storedTurn `json:"q,omitempty"`
}

const (
	// longTurn is how long a key is held, or waited for, before the masters are told: shorter turns are over before anybody asks
	longTurn   = 2 * time.Second
	maxTurns   = 16 << 10 // bytes; one turn takes a quarter at most
	storedLine = 20
)

func storedOf(k KeyStatus) *storedTurn {
	stored := &storedTurn{Label: k.Label, Since: k.Since.UnixMilli(), Fence: k.Fence, Wait: k.Waiting, Request: k.Request}
	for _, c := range k.Line {
		stored.Line = append(stored.Line, storedTurn{Label: c.Label, Since: c.Since.UnixMilli(), Request: c.Request})
	}
	return stored
}

// parseTurn returns nil for a text of another version.
func parseTurn(text string) *storedTurn {
	t := new(storedTurn)
	if json.Unmarshal([]byte(text), t) != nil {
		return nil
	}
	return t
}

// turn returns the call that has the lock with this fence or, for 0, the first that waits; or nil.
func (t *storedTurn) turn(fence uint64) *Turn {
	if t == nil {
		return nil
	}
	turn := &Turn{Call: t.call(), Waiting: t.Wait}
	for _, c := range t.Line {
		turn.Line = append(turn.Line, c.call())
	}
	switch {
	case t.Fence == fence:
		return turn
	case fence == 0 && len(turn.Line) > 0: // it has a slot, and wants another
		return &Turn{Call: turn.Line[0], Waiting: t.Wait, Line: turn.Line[1:]}
	}
	return nil
}

func (t *storedTurn) call() Call {
	return Call{Label: t.Label, Since: time.UnixMilli(t.Since), Request: t.Request}
}

// Keyspace identifies the place of the Locker's keys: its prefix and its masters. Lockers of a process with the same Keyspace see the same locks.
// Masters in memory belong to one Locker, whatever their names.
func (l *Locker) Keyspace() string { return l.keyspace() }

func (l *shared) keyspace() string {
	names := append([]string{l.prefix}, l.servers...)
	slices.Sort(names[1:])
	if l.heart == nil {
		names = append(names, l.voters.Process)
	}
	return strings.Join(names, "\n")
}

// sharesMasters reports whether two Lockers see the same locks.
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
