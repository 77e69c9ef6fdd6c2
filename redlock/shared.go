package redlock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// shared is the state that the calls and the locks of a Locker share. They refer to it rather than to the Locker.
type shared struct {
	options
	voters        *vote.Masters
	name          string   // the name of this process among the waiters on the masters
	servers       []string // the names of the masters' servers
	gates         gates
	pace          *pace
	subscriptions subscriptions
	differs       atomic.Pointer[otherSlots] // the latest call in the masters' queues that allows a different number of holders; nil for none
	lacksMasters  atomic.Bool                // an attempt has found too few masters with a vote
	askedAbsent   atomic.Int64               // when a call last asked while too few masters had a vote: a time.Duration since the gates began

	reporter *reporter
	keeper   *keeper
	heart    *heart // nil for masters in memory, which no other process has

	closing chan struct{} // closed when Close begins
	unlocks callGroup     // running calls of Unlock
}

// excluded returns the reason why this process may take no lock, whatever the masters reply; or nil.
func (s *shared) excluded() error {
	if err := s.heart.refusal(); err != nil {
		return &QuorumError{Quorum: s.voters.Quorum, Err: err}
	}
	return nil
}

func (s *shared) ends() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// otherSlots is a different number of holders, which a call in the masters' queues allows, and the time when it was met.
type otherSlots struct {
	n  int
	at time.Time
}

// callGroup counts the calls that are running, until it is closed. The zero value is open.
type callGroup struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// enter counts a call. It returns false if no call may begin any more. Otherwise leave must be called at the end of the call.
func (c *callGroup) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

func (c *callGroup) leave() { c.running.Done() }

func (c *callGroup) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
