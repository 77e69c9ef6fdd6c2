package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// admission decides which servers may vote, that is, whose grants and renewals count towards the quorum.
// The masters of a Locker must be independent: one server under two names would vote twice, and a replica
// only repeats what its master says. A server that may lack locks which are still valid must not vote until
// those have ended: one that has restarted, or another one that has taken over the address.
type admission struct {
	options
	mu    sync.Mutex
	seats []*seat
}

// seat is one master's place in the admission: what is known about the server behind its address, and
// whether that may vote.
type seat struct {
	*admission
	master protocol.Master
	clock  *masterClock

	server    protocol.Server // the one reached last, as it describes itself
	runID     string          // the run, from start to end, of the server reached last; empty before the first
	votingRun string          // the run that votes for this master now, over an open connection; it can't for another
	until     time.Time       // no vote before
	why       error           // the reason: ErrRestarted or ErrReplaced
	cluster   *seat           // that of the Redis Cluster whose node this is; nil for a single server

	onReached  func(protocol.Server) // called with each server that is reached
	onAdmitted func(protocol.Server) // called with each that may vote, at once or when its guard has ended
	onServing  func()                // called once commands can be sent to it
}

// add makes the seat of a master.
func (a *admission) add(m protocol.Master, clock *masterClock) *seat {
	a.mu.Lock() // the masters before it connect already
	defer a.mu.Unlock()
	s := &seat{admission: a, master: m, clock: clock}
	a.seats = append(a.seats, s)
	return s
}

// addNode makes the seat of a node of a Redis Cluster, whose nodes together are one master.
func (s *seat) addNode(m protocol.Master, clock *masterClock) *seat {
	node := s.add(m, clock)
	node.cluster = s
	return node
}

// drop removes the seat of a node.
func (s *seat) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seats = slices.DeleteFunc(s.seats, func(other *seat) bool { return other == s })
}

// quarantine returns how long a server that may have forgotten locks is excluded. It is measured from the
// moment at which that was noticed, so it must cover the longest lease of any process.
func (a *admission) quarantine() time.Duration { return max(a.guard, a.covers()+drift(a.maxTTL)) }

// disconnected notes that the master has no connection any more. Another server may take its place.
func (s *seat) disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.votingRun = ""
}

// votesAs returns the run that votes for the master now; it is empty if none does, or if the server doesn't report it.
func (s *seat) votesAs() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.votingRun
}

// Admit returns nil if the server that was just reached may vote, otherwise the reason.
func (s *seat) Admit(reached protocol.Server) error {
	s.onReached(reached)
	err := s.check(reached)
	if s.onAdmitted != nil && (err == nil || errors.Is(err, ErrRestarted)) {
		s.onAdmitted(reached)
	}
	return err
}

// dataLost excludes a server that may have forgotten its locks although neither its run nor the connection has
// changed: it has become a replica, which may be promoted again, or has lost its data.
func (s *seat) dataLost(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exclude(now)
}

// exclude takes the vote away until all locks that the former server may have granted have ended. Callers
// hold mu.
func (s *seat) exclude(at time.Time) {
	s.until, s.why = at.Add(s.quarantine()), ErrReplaced
}

// lostUntil returns until when the server was excluded because it may have lost its data, or zero.
func (s *seat) lostUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !errors.Is(s.why, ErrReplaced) {
		return time.Time{}
	}
	return s.until
}

// lastReached returns what the server that was reached last says of itself.
func (s *seat) lastReached() protocol.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// hasMemory notes what the server says of its memory now.
func (s *seat) hasMemory(memory protocol.Memory) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.Memory = memory
}

func (s *seat) check(reached protocol.Server) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = reached
	name := s.master.String()
	switch {
	case reached.Mode == "sentinel":
		return noVoteError(name + " is a Sentinel, which keeps no keys: name the Redis servers themselves")
	case tooOld(reached.Version):
		return noVoteError(fmt.Sprintf("%s runs Redis %s, but locks need 6.2 or newer", name, reached.Version))
	case reached.Replica() && s.cluster != nil:
		return noVoteError("it has become a replica: the cluster will be asked which node has its keys")
	case reached.Replica():
		// If it is promoted later, it may lack locks that its master has granted.
		s.runID = reached.RunID
		s.exclude(reached.Received)
		return noVoteError(name + " is a replica; name its master or an independent server instead")
	case s.guard > 0 && !reached.HasUptime:
		return noVoteError(name + " does not report its uptime, so it may have restarted and forgotten locks: grant this user INFO, or turn the restart guard off")
	}
	switch {
	case reached.RunID == "":
		s.logger.Warn("master does not report its run ID, so one server listed under two names would vote twice undetected: grant this user INFO", "master", name)
		s.until, s.why = s.firstSeen(reached), ErrRestarted
	case s.cluster != nil: // whether another node had the keys before, the cluster knows: see assign
		s.runID, s.until, s.why = reached.RunID, s.firstSeen(reached), ErrRestarted
	default:
		if s.runID != reached.RunID {
			s.changed(reached)
		}
		if s.votingRun != "" && s.votingRun != reached.RunID {
			// This is a second connection; on the first one the former run may still grant locks.
			s.exclude(reached.Received)
		}
	}
	if other := s.otherSeat(reached.RunID); other != nil {
		s.exclude(reached.Received) // it may have granted locks for the other master
		return noVoteError(fmt.Sprintf("%s is the same server as %s: list each server once", name, other.master))
	}
	s.clock.greeted(reached)
	if time.Now().Before(s.until) {
		return &guardError{until: s.until, why: s.why}
	}
	s.votingRun = reached.RunID
	if policy := reached.Memory.Policy; policy != "" && policy != "noeviction" {
		s.logger.Warn("master may evict locks before they expire: set maxmemory-policy to noeviction", "master", name, "maxmemory-policy", policy)
	}
	return nil
}

// changed handles a run that this master hasn't reached before. The times in it are by our own clock: the
// server's clock may be set at any time, which changes its uptime too.
//
// From the moment at which the new run was reached, the former one grants nothing to us. But when it ended
// isn't known: it may have answered other processes until just now. So the new run is excluded, from now
// on, for as long as any lock that the former one could have granted.
func (s *seat) changed(reached protocol.Server) {
	former := s.runID
	known := former != ""
	for _, other := range s.seats {
		known = known || other.runID == reached.RunID
	}
	s.runID = reached.RunID
	if !known {
		s.until, s.why = s.firstSeen(reached), ErrRestarted
		return
	}
	started := reached.Received.Add(time.Second - reached.Uptime) // an uptime is up to one second too high
	if started.Before(s.clock.lastSeen()) || former == "" {
		s.exclude(reached.Received)
	} else if s.guard > 0 {
		s.until, s.why = reached.Received.Add(s.quarantine()), ErrRestarted
	}
	s.clock.forget()
}

// firstSeen returns from when a server may vote about which nothing is known but what it says itself. If its
// clock was set since it started, its uptime is wrong by as much. It never waits for more than the guard.
func (s *seat) firstSeen(reached protocol.Server) time.Time {
	uptime := min(max(reached.Uptime, 0), s.guard)
	if started := time.UnixMicro(reached.Time).Add(-reached.Uptime); reached.Time > 0 && started.Year() < 1980 {
		uptime = 0 // no real-time clock: it started in 1970, and the uptime includes the jump to the present
	}
	return reached.Received.Add(s.guard - uptime)
}

// otherSeat returns another master whose vote the same server already has, or nil.
func (s *seat) otherSeat(runID string) *seat {
	for _, other := range s.seats {
		if other != s && runID != "" && other.votingRun == runID && (s.cluster == nil || other.cluster != s.cluster) {
			return other
		}
	}
	return nil
}

// tooOld reports whether a version of Redis lacks what the scripts need.
func tooOld(version string) bool {
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, errMa := strconv.Atoi(major)
	mi, errMi := strconv.Atoi(minor)
	return errMa == nil && errMi == nil && (ma < 6 || ma == 6 && mi < 2)
}

// errNoVote marks the refusal of a server that may not vote.
var errNoVote = errors.New("it has no vote")

func noVoteError(reason string) error { return fmt.Errorf("%w: %s", errNoVote, reason) }

// guardError is the reason why a server that may lack valid locks must not vote yet.
type guardError struct {
	until time.Time
	why   error
}

func (e *guardError) Error() string {
	return fmt.Sprintf("%v: excluded for another %v", e.why, time.Until(e.until).Round(time.Second))
}

// Is makes errors.Is find ErrRestarted and ErrReplaced.
func (e *guardError) Is(target error) bool {
	return errors.Is(e.why, target)
}
