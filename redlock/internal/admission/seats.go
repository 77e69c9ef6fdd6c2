// Package admission decides which servers may vote. A server must be independent of the others, must not have forgotten a valid lock, and must have a
// clock that is right.
package admission

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Seats decide which servers may vote. Only grants and renewals of these servers count toward the quorum. The masters of a Locker must be
// independent: one server under two names would vote twice, and a replica only copies its master. A server that may lack valid locks, because it has
// restarted or has taken over the address of another server, must not vote until these locks have ended.
type Seats struct {
	Settings
	clocks *clocks
	mu     sync.Mutex
	added  int // how many masters were added; nodes of Redis Clusters don't count
	all    []*Seat
}

type Settings struct {
	MaxTTL  time.Duration // the longest TTL of any lock of this process
	Guard   time.Duration // how long a server that has just started has no vote; 0 for off
	MaxSkew time.Duration // how much the masters' clocks may differ; 0 for no limit
	Logger  *slog.Logger
	Young   time.Duration // how long other processes may take to notice that a server has lost its data
	Key     string        // the key under which masters keep the beats of processes; empty if there are no beats
	Refused func() error  // returns the reason why this process may not lock now, whatever the masters reply, or nil; the function may be nil
}

// Covers returns the longest max TTL that another process may have so that the restart guard outlasts its leases.
func (s Settings) Covers() time.Duration { return max(s.MaxTTL, s.Guard-time.Second) }

// New prepares seats for this number of masters. Add makes each seat.
func New(masters int, s Settings) *Seats {
	return &Seats{Settings: s, clocks: newClocks(masters, s)}
}

// Seat is one master's place among the voters: the facts about the server at the master's address, and whether that server may vote. A run of a
// server lasts from its start to its end, and has a run ID.
type Seat struct {
	*Seats
	master protocol.Master
	Clock  *Clock

	server    protocol.Server
	runID     string // the run of the server that was reached last; empty before the first one
	votingRun string // the run that votes for this master now, over an open connection; it can't vote for another master, too
	met       string // the last run that voted for this master; the beats show whether it has lost its data
	doubted   doubt
	until     time.Time // the server has no vote before this time
	why       error     // the reason for until: ErrRestarted, ErrReplaced or ErrYoung
	policy    string    // the server's last known maxmemory-policy; empty before it was reached
	useless   bool      // the server's present certificate allows no new connection
	cluster   *Seat     // for a node, the seat of its Redis Cluster; nil for a master

	OnReached  func(protocol.Server) // called with each server that is reached
	OnAdmitted func(protocol.Server) // called with each server that may vote, before it does
	OnServing  func()                // called when commands can be sent to the server
}

// doubt is the reason why a server had to wait when this process first met it. A server waits only once for the same reason.
type doubt struct {
	run  string
	born int64 // the beginning of the server's memory, if the server has lost its data; 0 if no loss was known
}

// KeyOfBeats returns the key under which the server keeps the beats of processes. It is empty for a node of a Redis Cluster, because this key and a
// lock can be on different nodes.
func (s *Seat) KeyOfBeats() string {
	if s.cluster != nil {
		return ""
	}
	return s.Key
}

func (a *Seats) Add(m protocol.Master) *Seat {
	a.mu.Lock() // the masters that were added before may already be connecting
	defer a.mu.Unlock()
	a.added++
	return a.seat(m, a.clocks.all[a.added-1])
}

func (a *Seats) seat(m protocol.Master, clock *Clock) *Seat {
	s := &Seat{Seats: a, master: m, Clock: clock}
	a.all = append(a.all, s)
	return s
}

// AddNode makes the seat of a node of a Redis Cluster, whose nodes together are one master.
func (s *Seat) AddNode(m protocol.Master) *Seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.seat(m, s.clocks.addNode(s.Clock, s.Covers()))
	node.cluster = s
	return node
}

func (s *Seat) Drop() {
	s.clocks.dropNode(s.Clock)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *Seat) bool { return other == s })
}

// quarantine returns how long a server is excluded that may have forgotten locks: as long as the longest lease of any process. The time counts from
// when the loss is noticed.
func (a *Seats) quarantine() time.Duration { return max(a.Guard, a.Covers()+Drift(a.MaxTTL)) }

// Disconnected notes that the master has no connection any more, so that a different server may answer next.
func (s *Seat) Disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.votingRun = ""
}

// VotesAs returns the run that votes for the master now. It is empty if no server does, or if the server doesn't report its run ID.
func (s *Seat) VotesAs() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.votingRun
}

// Admit returns nil if the server that was just reached may vote, and otherwise the reason why it may not.
func (s *Seat) Admit(reached protocol.Server) error {
	s.OnReached(reached)
	err := s.check(reached)
	if s.OnAdmitted != nil && err == nil {
		s.OnAdmitted(reached)
	}
	return err
}

// DataLost excludes a server that may have forgotten its locks, although its run and its connection are the same. It has lost its data, or it has
// become a replica, which may be promoted again.
func (s *Seat) DataLost(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exclude(now)
}

// exclude takes the vote away until all locks have ended that the server, or its predecessor at the address, may have granted. Callers hold mu.
func (s *Seat) exclude(at time.Time) {
	s.until, s.why = at.Add(s.quarantine()), ErrReplaced
}

// LostUntil returns the time until which the server is excluded because it may have lost its data, or the zero time.
func (s *Seat) LostUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(s.why, ErrReplaced) {
		return time.Time{}
	}
	return s.until
}

func (s *Seat) LastReached() protocol.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

func (s *Seat) HasMemory(memory protocol.Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.Memory = memory
	s.seePolicy(memory)
}

// HasCertificate notes the time until which the server's present certificate is valid, or the reason why it allows no connection.
func (s *Seat) HasCertificate(until time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	useless := err != nil
	switch {
	case useless && !s.useless:
		s.Logger.Warn("master shows a certificate with which no connection can be made: locks go on until the present connection breaks", "master", s.master.String(), "error", err)
	case !useless && s.useless:
		s.Logger.Info("master shows a certificate again with which connections can be made", "master", s.master.String())
	}
	s.useless = useless
	if !useless {
		s.server.CertificateUntil = until
	}
}

func (s *Seat) check(reached protocol.Server) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = reached
	name := s.master.String()
	switch {
	case reached.Mode == "sentinel":
		return noVoteError(name + " is a Sentinel, which keeps no keys: name the Redis servers themselves")
	case reached.TooOld():
		return noVoteError(fmt.Sprintf("%s runs Redis %s, but locks need 6.2 or newer", name, reached.Version))
	case reached.Replica() && s.cluster != nil:
		return noVoteError("it has become a replica: the cluster will be asked which node has its keys")
	case reached.Replica():
		// If this replica is promoted later, it may lack locks that its master has granted.
		s.runID = reached.RunID
		s.exclude(reached.Received)
		return noVoteError(name + " is a replica; name its master or an independent server instead")
	case s.Guard > 0 && !reached.HasUptime:
		return noVoteError(name + " does not report its uptime, so it may have restarted and forgotten locks: grant this user INFO, or turn the restart guard off")
	}
	switch {
	case reached.RunID == "":
		s.Logger.Warn("master does not report its run ID, so one server listed under two names would vote twice undetected: grant this user INFO", "master", name)
		s.until, s.why = s.firstSeen(reached), ErrRestarted
	default:
		if s.runID != reached.RunID {
			s.changed(reached)
		}
		if s.votingRun != "" && s.votingRun != reached.RunID {
			// This connection is a second one. Over the first, the earlier run may still grant locks.
			s.exclude(reached.Received)
		}
	}
	if other := s.otherSeat(reached.RunID); other != nil {
		s.exclude(reached.Received) // the server may have granted locks for the other master
		return noVoteError(fmt.Sprintf("%s is the same server as %s: list each server once", name, other.master))
	}
	if s.met != reached.RunID {
		s.meet(reached)
	}
	s.Clock.greeted(reached)
	if time.Now().Before(s.until) {
		return &GuardError{Until: s.until, Why: s.why}
	}
	s.votingRun, s.met = reached.RunID, reached.RunID
	s.seePolicy(reached.Memory)
	return nil
}

// seePolicy logs the server's maxmemory-policy if it has changed. Callers hold mu.
func (s *Seat) seePolicy(memory protocol.Memory) {
	switch {
	case memory.Policy == "" || memory.Policy == s.policy:
		return
	case memory.Evicts():
		s.Logger.Warn("master may evict locks before they expire: set maxmemory-policy to noeviction", "master", s.master.String(), "maxmemory-policy", memory.Policy)
	case s.policy != "":
		s.Logger.Info("master evicts no locks any more", "master", s.master.String(), "maxmemory-policy", memory.Policy)
	}
	s.policy = memory.Policy
}

// changed handles a run that wasn't reached at this master's address before. It uses our own clock, because a change of the server's clock changes
// the server's uptime as well.
//
// From now on the former run grants nothing to this process. But nobody knows when the former run ended: it may have answered other processes until
// just now. So the new run is excluded, from now on, for as long as any lock of the former run can last.
func (s *Seat) changed(reached protocol.Server) {
	former := s.runID
	known := former != ""
	for _, other := range s.all {
		known = known || other.runID == reached.RunID
	}
	s.runID = reached.RunID
	if !known {
		s.until, s.why = s.firstSeen(reached), ErrRestarted
		return
	}
	started := reached.Received.Add(time.Second - reached.Uptime) // an uptime is up to one second too long
	if started.Before(s.Clock.LastSeen()) || former == "" {
		s.exclude(reached.Received)
	} else if s.Guard > 0 {
		s.until, s.why = reached.Received.Add(s.quarantine()), ErrRestarted
	}
	s.Clock.forget()
}

// meet excludes a server that this process meets for the first time, if the server has lost its data or may have lost it: see Server.Doubt. Callers
// hold mu.
func (s *Seat) meet(reached protocol.Server) {
	rest, lost := reached.Doubt(min(s.Young, s.Guard), s.quarantine())
	now, why := doubt{run: reached.RunID}, ErrYoung
	if lost {
		now.born, why = reached.Past.Born, ErrReplaced
	}
	if rest == 0 || now == s.doubted || now.born == 0 && now.run == s.doubted.run {
		return
	}
	s.doubted = now
	if until := reached.Received.Add(rest); until.After(s.until) {
		s.until, s.why = until, why
	}
}

// firstSeen returns when a server may vote of which only the uptime is known. If the server's clock was set after its start, the uptime is wrong by
// that much. The server never waits longer than the guard.
func (s *Seat) firstSeen(reached protocol.Server) time.Time {
	uptime := min(max(reached.Uptime, 0), s.Guard)
	if started := time.UnixMicro(reached.Time).Add(-reached.Uptime); reached.Time > 0 && started.Year() < 1980 {
		uptime = 0 // a server without a real-time clock starts in 1970, and then its uptime includes the jump to the present
	}
	return reached.Received.Add(s.Guard - uptime)
}

// otherSeat returns the seat of another master for which this run already votes, or nil.
func (s *Seat) otherSeat(runID string) *Seat {
	for _, other := range s.all {
		if other != s && runID != "" && other.votingRun == runID && (s.cluster == nil || other.cluster != s.cluster) {
			return other
		}
	}
	return nil
}

// The reasons why a server that may lack valid locks has no vote. Package redlock explains them.
var (
	ErrRestarted = errors.New("redlock: master has just started, and may have forgotten locks")
	ErrYoung     = protocol.Mark(errors.New("redlock: master remembers no process for long, so it is new, or has just lost its data"), ErrRestarted)
	ErrReplaced  = protocol.Mark(errors.New("redlock: another server, or other data, answers for the master"), ErrRestarted)
)

// ForgetRun makes the next server count as the first one. Only tests call it: it is a deliberate bug that they must find.
func (s *Seat) ForgetRun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runID = ""
	s.Clock.forget()
}

// ErrNoVote marks the refusal of a server that may not vote.
var ErrNoVote = errors.New("it has no vote")

func noVoteError(reason string) error { return fmt.Errorf("%w: %s", ErrNoVote, reason) }

// GuardError is the reason why a server that may lack valid locks must not vote yet.
type GuardError struct {
	Until time.Time
	Why   error
}

func (e *GuardError) Error() string {
	rest := time.Until(e.Until).Round(time.Second)
	if rest <= 0 { // the error is shown for longer, as that of a master that comes and goes
		return fmt.Sprintf("%v: its restart guard is over", e.Why)
	}
	return fmt.Sprintf("%v: the restart guard excludes it for another %v", e.Why, rest)
}

func (e *GuardError) Is(target error) bool {
	return errors.Is(e.Why, target)
}
