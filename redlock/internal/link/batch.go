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
	users    int // the goroutine that sends it, and the one that settles it: a reply may come before the send has returned
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

// soloFrom is after how many batches in a row, each sent by its caller with nothing else under way, callers are taken to be alone.
const soloFrom = 8

// solo is about a caller that is alone with its one master. It reads the reply to what it has sent: to be woken by read would take it
// as long as the master needs. Meanwhile read rests, until something else is under way, or nothing has been sent between two of its
// looks. Then it waits for replies again, in place of a caller that still does: so a master that hangs, a context that ends and
// Close hold up nobody for longer than that, and the end of an idle connection is noticed. The stream's mu guards it.
type solo struct {
	row     int           // batches that callers have sent, one after the other
	rests   bool          // read does
	reading bool          // a caller reads
	unread  chan struct{} // signals read that it is needed
}

// rest lets callers read for as long as each is alone. It runs on the goroutine of read.
func (s *Stream) rest(c protocol.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	direct, able := c.(protocol.Direct)
	if !able || s.solo.row < soloFrom || len(s.flight) > 0 {
		return
	}
	s.solo.rests = true
	look := time.NewTicker(s.Solo)
	defer look.Stop()
	for needed, before := false, 0; !needed && s.solo.row != before; {
		before = s.solo.row
		s.mu.Unlock()
		select {
		case <-look.C:
		case <-s.solo.unread:
			needed = true
		}
		s.mu.Lock()
	}
	s.solo.rests, s.solo.row = false, 0
	if s.solo.reading {
		direct.Interrupt()
	}
	for s.solo.reading {
		s.mu.Unlock()
		<-s.solo.unread
		s.mu.Lock()
	}
	direct.Resume()
}

// sentAlone runs when a caller has sent a command itself, with nothing else under way: if read rests, the caller reads the reply.
// mu is held before and after, but not while it reads.
func (s *Stream) sentAlone() {
	if s.Solo > 0 && s.prompt {
		s.solo.row++
	}
	c, connected := s.conn.(protocol.Direct)
	if !s.solo.rests || !connected || len(s.flight) == 0 {
		return
	}
	s.solo.reading = true
	cmds := s.flight[0].cmds
	s.mu.Unlock()
	if c.Await() {
		if err := c.Receive(cmds); err != nil {
			c.Close()
		}
		s.landed(nil)
	}
	s.mu.Lock()
	s.solo.reading = false
	if !s.solo.rests || len(s.flight) > 0 {
		Signal(s.solo.unread)
	}
}

// sentForOthers runs when a batch was sent whose reply isn't for the goroutine that has sent it. mu is held.
func (s *Stream) sentForOthers() {
	s.solo.row = 0
	if s.solo.rests && !s.solo.reading {
		Signal(s.solo.unread)
	}
}
