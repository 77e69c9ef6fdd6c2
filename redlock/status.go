package redlock

import (
	"errors"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Status is what a Locker knows at one moment, for those who operate it.
type Status struct {
	Masters   []MasterStatus
	Quorum    int // masters that must grant a lock
	Available int // masters that would grant one now
	Held      int // keys that this Locker has locked
	Waiting   int // calls that don't have their lock yet
	// DroppedLines and DroppedEvents count the lines for the log, and the calls of the Observer, that it didn't get, because it
	// was too slow, blocked or panicked. Neither can hold up a lock.
	DroppedLines, DroppedEvents uint64
	// MissedResults counts results that a quorum remembers, but that some master has missed and won't get any more: it was away
	// for more than a minute, or others waited for it already. One for each such master.
	MissedResults uint64
	// RefusedResults counts results that were not stored or read, because too many others were.
	RefusedResults uint64
	// Err is why no lock can be taken although enough masters are available: another process has other
	// masters, or the Locker is closed. It is nil otherwise.
	Err error
}

// Ready reports whether locks can be taken now.
func (s Status) Ready() bool { return s.Err == nil && s.Available >= s.Quorum }

// MasterStatus is what a Locker knows of one master.
type MasterStatus struct {
	Name  string // without credentials
	State MasterState
	Err   error     // why it grants no locks; nil while it is available or being connected to
	Until time.Time // when it will grant locks again without anybody's help; zero if that isn't known

	RoundTrip       time.Duration // of its last answer, with the time that it took the server; 0 before the first
	ClockOffset     time.Duration // how far its clock is ahead of ours, to within half a round trip
	Version         string        // of the server; empty if it wasn't reached yet, or doesn't say
	MaxmemoryPolicy string        // of the server: it should be noeviction
	UsedMemory      int64         // of the server, in bytes, at most some 10 s ago; 0 if it doesn't say
	Maxmemory       int64         // of the server, in bytes; 0 if it has no limit, or doesn't say
}

// MasterState says in a word whether a master grants locks, and why not.
type MasterState string

// The states of a master.
const (
	MasterAvailable   MasterState = "available"
	MasterConnecting  MasterState = "connecting"  // the first connection, or the next one, is being made
	MasterUnreachable MasterState = "unreachable" // no connection can be made
	MasterHung        MasterState = "hung"        // it doesn't answer within the timeout
	MasterRestarted   MasterState = "restarted"   // it may have forgotten locks: see WithRestartGuard
	MasterReplaced    MasterState = "replaced"    // another server, or other data: see ErrReplaced
	MasterClock       MasterState = "clock"       // its clock has jumped, was set back, or is wrong
	MasterRefuses     MasterState = "refuses"     // it refuses locks: for rights, memory, or because it loads. It is tried every second
	MasterExcluded    MasterState = "excluded"    // somebody must act: a replica, a server that is named twice, …
)

// Status returns what the Locker knows now. It asks no master, and doesn't block. What is known of an idle
// master is a few seconds old at the most.
func (l *Locker) Status() Status {
	status := Status{Quorum: l.quorum, Err: l.sets.refusal(), Masters: make([]MasterStatus, len(l.streams))}
	for i, s := range l.streams {
		status.Masters[i] = s.status()
		if status.Masters[i].State == MasterAvailable {
			status.Available++
		}
	}
	status.Held, status.Waiting = l.gates.count()
	status.DroppedLines, status.DroppedEvents = l.told.lines.count(), l.told.events.count()
	status.MissedResults, status.RefusedResults = l.late.count(), l.refused.Load()
	select {
	case <-l.closing:
		status.Err = ErrClosed
	default:
	}
	return status
}

// status returns what is known of the master; of a Redis Cluster, of the node with the worst state.
func (s *stream) status() MasterStatus {
	worst := s.ownStatus()
	for _, node := range s.nodes() {
		if status := node.ownStatus(); worst.State == MasterAvailable && status.State != MasterAvailable {
			worst = status
		}
	}
	worst.Name = s.master.String()
	return worst
}

func (s *stream) ownStatus() MasterStatus {
	s.mu.Lock()
	err := s.refusal(protocol.OpAcquire)
	if err == nil && s.conn != nil {
		err = s.reported // the pause after a failure is over, and the next command or trial will show
	}
	s.mu.Unlock()
	return s.statusWith(err)
}

// statusWith returns what is known of a master that takes no acquires for this reason, or takes them if that is nil.
func (s *stream) statusWith(err error) MasterStatus {
	server := s.seat.LastReached()
	s.mu.Lock()
	defer s.mu.Unlock()
	status := MasterStatus{
		Name:            s.master.String(),
		Err:             err,
		RoundTrip:       time.Duration(s.latency.last.Load()),
		ClockOffset:     s.clock.Offset(time.Now()),
		Version:         server.Version,
		MaxmemoryPolicy: server.Memory.Policy,
		UsedMemory:      server.Memory.Used,
		Maxmemory:       server.Memory.Max,
	}
	status.State, status.Until = s.state(err)
	return status
}

// state classifies why a master takes no acquires. Callers hold mu.
func (s *stream) state(err error) (state MasterState, until time.Time) {
	var guard *admission.GuardError
	if errors.As(err, &guard) {
		until = guard.Until
	}
	switch {
	case err == nil && s.conn == nil:
		return MasterConnecting, until
	case err == nil:
		return MasterAvailable, until
	case errors.Is(err, errHung):
		return MasterHung, until
	case errors.Is(err, ErrReplaced):
		return MasterReplaced, until
	case errors.Is(err, ErrRestarted), guard != nil:
		return MasterRestarted, until
	case errors.Is(err, admission.ErrClockJump):
		return MasterClock, s.clock.Resumes()
	case errors.Is(err, admission.ErrClockBack), errors.Is(err, admission.ErrClockSkew):
		return MasterClock, until
	case errors.Is(err, admission.ErrNoVote):
		return MasterExcluded, until
	case errors.Is(err, protocol.ErrUnusable):
		return MasterRefuses, until
	}
	return MasterUnreachable, until
}
