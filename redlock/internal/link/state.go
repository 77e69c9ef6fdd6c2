package link

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// State is what a stream knows of its master.
type State struct {
	Name        string
	Err         error     // why it takes no acquires; nil while it does, or is being connected to
	Since       time.Time // since when; zero while it does
	Connected   bool      // there is a connection
	Resumes     time.Time // when it may vote again after the last jump of its clock
	RoundTrip   time.Duration
	ClockOffset time.Duration // how far its clock is ahead of ours
	Server      protocol.Server
}

// State returns what is known of the master; of a Redis Cluster, of the first node that isn't available.
func (s *Stream) State() State {
	worst := s.ownState()
	for _, node := range s.nodes() {
		if state := node.ownState(); worst.available() && !state.available() {
			worst = state
		}
	}
	worst.Name = s.String()
	return worst
}

func (s State) available() bool { return s.Err == nil && s.Connected }

func (s *Stream) ownState() State {
	s.mu.Lock()
	err := s.refusal(protocol.OpAcquire)
	if err == nil && s.conn != nil {
		err = s.reported // the pause after a failure is over, and the next command or trial will show
	}
	s.mu.Unlock()
	return s.stateWith(err)
}

// stateWith returns what is known of a master that takes no acquires for this reason, or takes them if that is nil.
func (s *Stream) stateWith(err error) State {
	server := s.seat.LastReached()
	s.mu.Lock()
	defer s.mu.Unlock()
	var since time.Time
	if err != nil && s.reported != nil {
		since = s.illSince
	}
	return State{
		Since:       since,
		Name:        s.String(),
		Err:         err,
		Connected:   s.conn != nil,
		Resumes:     s.Clock.Resumes(),
		RoundTrip:   time.Duration(s.latency.last.Load()),
		ClockOffset: s.Clock.Offset(time.Now()),
		Server:      server,
	}
}
