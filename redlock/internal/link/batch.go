package link

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// batch is the commands of one pipeline.
type batch struct {
	commands []*Command
	cmds     []*protocol.Command
	fast     []*Command // while it is filled: acquires that are to be its end
	sentAt   time.Time
	users    int // the goroutine that sends it, and the one that settles it: an answer may come before the send has returned
}

// flush sends one batch from the queue and, if it is answered at once, settles it. mu is held before and
// after, but not while it sends.
func (s *Stream) flush() {
	b, dropped := s.take()
	c, sends := s.conn, len(b.commands) > 0
	if sends {
		s.sending = true
		s.flight = append(s.flight, b)
	} else {
		s.spare = b
	}
	s.mu.Unlock()
	for _, c := range dropped {
		c.deliver()
	}
	if sends {
		answered, err := c.Send(b.cmds)
		if err != nil {
			c.Close() // the goroutine in read notices, and ends the connection
		}
		if answered {
			s.landed(nil)
		}
	}
	s.mu.Lock()
	if sends { // otherwise sending may by now belong to another goroutine
		s.sending = false
		s.finished(b)
		if s.conn != c {
			s.sendEnded.Broadcast()
		}
	}
	if len(s.queue) > 0 {
		s.SendSoon()
	} else if s.closing && !s.pending() { // all that was left has been dropped
		Signal(s.tend)
	}
}

// take moves the head of the queue into a batch, leaving out and returning the commands that need not be sent
// any more. Fast acquires are its end, so that the master takes them together. What must come after one of them, the release or an
// extend of the same attempt, is never in the same batch: the release gives up an acquire that is not sent yet. The keys of a
// cluster are in different slots, and can't be taken together. Callers hold mu.
func (s *Stream) take() (b *batch, dropped []*Command) {
	if b = s.spare; b == nil {
		b = &batch{}
	}
	s.spare = nil
	b.sentAt, b.users = time.Now(), 2
	n, bytes := 0, 0
	for n < min(len(s.queue), protocol.MaxBatch) && bytes < maxBytes {
		c := s.queue[n]
		n++
		if c.Result != nil {
			bytes += len(c.Result.Data)
		}
		if c.Op == protocol.OpAcquire {
			s.acquires--
		}
		if c.unneeded() {
			if c.Op != protocol.OpRelease {
				c.Reply.Err = errAbandoned
			}
			dropped = append(dropped, c)
			if c = c.takeFormer(); c == nil || c.unneeded() {
				continue
			}
		}
		c.sending(b.sentAt)
		if c.Fast = c.Fast && s.cluster == nil; c.Fast {
			b.fast = append(b.fast, c)
		} else {
			b.commands = append(b.commands, c)
		}
	}
	s.queue.drop(n)
	b.commands = append(b.commands, b.fast...)
	for _, c := range b.commands {
		b.cmds = append(b.cmds, &c.Command)
	}
	clear(b.fast)
	b.fast = b.fast[:0]
	return b, dropped
}

// landed settles the oldest batch in flight: its replies have come or, if broken is set, never will.
func (s *Stream) landed(broken error) {
	s.mu.Lock()
	b := s.flight[0]
	s.flight = s.flight[:copy(s.flight, s.flight[1:])]
	s.mu.Unlock()
	if broken != nil {
		for _, cmd := range b.cmds {
			cmd.Reply = protocol.Reply{Err: broken}
		}
	}
	s.settle(b)
	s.mu.Lock()
	s.finished(b)
	more, done := len(s.queue) > 0, s.closing && !s.pending()
	s.mu.Unlock()
	if more {
		s.SendSoon()
	}
	if done {
		Signal(s.tend)
	}
}

// finished ends one use of a batch. After the last, the batch is kept for its capacity. Callers hold mu.
func (s *Stream) finished(b *batch) {
	if b.users--; b.users == 0 {
		clear(b.commands)
		clear(b.cmds)
		b.commands, b.cmds = b.commands[:0], b.cmds[:0]
		s.spare = b
	}
}
