package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Push queues a command and has it sent. If nothing else is under way the caller sends it itself, which saves
// a switch of goroutines; it can't block then, as the connection is a socket whose buffers are empty, and the command is short.
func (s *Stream) Push(c *Command) {
	s.mu.Lock()
	s = s.home(c)
	taken, err := s.accept(c)
	if taken && c.isShort() && s.conn != nil && s.prompt && !s.sending && len(s.queue) == 1 && len(s.flight) == 0 {
		passes := c.former != nil // the lock on to another caller, who waits for the reply
		if s.flush(); passes {
			s.sentForOthers()
		} else {
			s.sentAlone()
		}
		taken = false
	}
	s.mu.Unlock()
	s.declined(c, err)
	if taken {
		s.SendSoon()
	}
}

// isShort reports whether the buffers of a connection have room for the command: its key is in it up to five times.
func (c *Command) isShort() bool { return c.Result == nil && len(c.Key) <= 1<<10 }

// Enqueue queues a command. It is sent with the next push, or when the stream is told to send soon.
func (s *Stream) Enqueue(c *Command) {
	s.mu.Lock()
	s = s.home(c)
	_, err := s.accept(c)
	s.mu.Unlock()
	s.declined(c, err)
}

// accept queues a command, or returns why it doesn't. Acquires are refused while the master is known to be
// down. Releases are always taken if the master may have something to release; as each belongs to an
// acquire that was sent, their number is bounded too. Callers hold mu.
func (s *Stream) accept(c *Command) (taken bool, err error) {
	if err = s.refusal(c.Op); err == nil && c.Op == protocol.OpRelease && c.unneeded() {
		err = errUnneeded
	}
	if c.Op == protocol.OpExtend && !c.until.IsZero() {
		c.RefillUntil = s.Clock.Earliest(c.until)
	}
	if err == nil && s.cluster != nil {
		err = s.cluster.prepare(c)
	}
	if err != nil {
		return false, err
	}
	s.queue = append(s.queue, c)
	switch {
	case c.Op == protocol.OpAcquire:
		s.acquires++
	case c.Op == protocol.OpRelease && c.Queue && c.acquire.ticket != nil:
		c.acquire.ticket.left = true // it may be sent when the call has ended: the release that takes the ticket away has to follow it
	}
	return true, nil
}

var (
	ErrClosed   = errors.New("redlock: locker is closed")
	ErrHung     = errors.New("no reply")
	errBacklog  = fmt.Errorf("%d lock requests are already queued for this master", maxQueue)
	errUnneeded = errors.New("unneeded")
)

// declined answers a command that accept has refused.
func (s *Stream) declined(c *Command, err error) {
	if err == nil {
		return
	}
	if errors.Is(err, ErrHung) {
		s.note(err)
		Signal(s.tend)
	}
	if err != errUnneeded {
		c.Reply.Err = protocol.Unsent(err)
	}
	c.deliver()
	if former := c.takeFormer(); former != nil { // it can still be sent without the acquire
		s.Push(former)
	}
}

// refusal returns why commands of this kind are refused now, or nil. Callers hold mu.
func (s *Stream) refusal(op protocol.Op) error {
	now := time.Now()
	silent := s.silence(now)
	// A server that is slow, or takes no new lock, may renew those that it has: none may be lost because others are refused. The
	// silence of a cluster's node may mean that another has taken its place.
	renews := op == protocol.OpExtend && s.conn != nil && len(s.queue) < maxQueue
	patient := renews && s.cluster == nil && silent <= s.MaxTTL
	switch {
	case s.closing:
		return ErrClosed
	case op == protocol.OpRelease:
		return nil
	case silent > s.latency.timeout() && !patient:
		return fmt.Errorf("%w for %v%s", ErrHung, silent.Round(time.Millisecond), s.latency.advice())
	case s.conn != nil && (op == protocol.OpForce || op == protocol.OpInspect || op == protocol.OpNames || op == protocol.OpBeat): // also where it takes no locks
		return nil
	case s.conn == nil && s.downErr != nil, now.Before(s.downUntil) && !renews:
		return s.downErr
	case !s.Clock.Trusted(now):
		return s.Clock.Quarantined(now)
	case s.acquires >= maxQueue && !renews:
		return errBacklog
	}
	return nil
}

// MayHave reports whether the master may have a ticket.
func (s *Stream) MayHave(ticket *TicketState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ticket.left || ticket.uncertain
}

// Withdraw takes this process out of the queue for a key on the master.
func (s *Stream) Withdraw(key, process string, ticket int64) {
	s.Enqueue(Forced(protocol.Command{Op: protocol.OpRelease, Key: key, Process: process, Ticket: ticket}, nil))
	s.SendSoon() // not push: it might run a memory master's commands here, and through them the caller
}

// Usable reports whether acquires are taken now.
func (s *Stream) Usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal(protocol.OpAcquire) == nil
}

// silence returns for how long the oldest batch in flight has been without a reply. Callers hold mu.
func (s *Stream) silence(now time.Time) time.Duration {
	if len(s.flight) == 0 {
		return 0
	}
	return now.Sub(s.flight[0].sentAt)
}

// Patience returns how long a caller should wait for the reply to a command pushed now: the master's timeout
// and, while a connection is being made, the rest of the time for that.
func (s *Stream) Patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	patience := s.latency.timeout()
	if s.conn == nil && s.downErr == nil {
		patience += max(0, s.connectTime()-time.Since(s.connectingSince))
	}
	return patience
}

// Unconnected returns for how long there has been no connection to the master.
func (s *Stream) Unconnected() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		return 0
	}
	return time.Since(s.connectingSince)
}
