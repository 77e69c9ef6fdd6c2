package link

import (
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// soloFrom is after how many batches in a row, each sent by its caller with nothing else under way, callers are taken to be alone.
const soloFrom = 8

// solo is about a caller that is alone with its one master. It reads the answer to what it has sent: to be woken by read would take it
// as long as the master needs. Meanwhile read rests, until something else is under way, or nothing has been sent between two of its
// looks. Then it waits for answers again, in place of a caller that still does: so a master that hangs, a context that ends and
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

// sentAlone runs when a caller has sent a command itself, with nothing else under way: if read rests, the caller reads the answer.
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

// sentForOthers runs when a batch was sent whose answer isn't for the goroutine that has sent it. mu is held.
func (s *Stream) sentForOthers() {
	s.solo.row = 0
	if s.solo.rests && !s.solo.reading {
		Signal(s.solo.unread)
	}
}
