package traefik

import (
	"net"
	"strings"
	"time"
)

// batch is how many commands may be under way. They fit into the buffers of a connection, so that sending them doesn't block even if
// the server hangs.
const batch = 64

// stream sends commands to one master, in order and on one connection, so that a release can't overtake its acquire, however late
// the master reads both. One batch is under way at a time. If none is, the caller that pushes a command sends it; otherwise the
// goroutine that reads the answers does. The locker's mu guards the stream, and is not held while something is sent or read.
type stream struct {
	l       *locker
	index   int
	address *address
	clock   *clock
	seat    *seat

	conn   net.Conn // nil while there is none
	known  map[int]bool
	queue  []*command
	flight []*command
	owed   []*command // releases that the master missed
	sentAt time.Time  // of what is under way
	used   time.Time  // when it answered, or was probed, last
	served bool       // a command was answered on this connection

	connects  time.Time // since when there is no connection
	down      string    // why there is no connection, or no vote; "" while one is being made, or there is one
	downUntil time.Time // no connection is tried before
	pause     time.Duration
	logged    string // what was logged last
}

// push queues a command, which takeBatch and write send.
func push(s *stream, c *command) {
	now := time.Now()
	if c.op == opAcquire || c.op == opExtend {
		if why := refusalOf(s, now); why != "" {
			s.fail(c, why)
			return
		}
	}
	if c.op == opRelease && needless(c, now) {
		return
	}
	s.queue = append(s.queue, c)
}

// refusalOf returns why no acquire or extend is accepted now, or "".
func refusalOf(s *stream, now time.Time) string {
	switch {
	case s.l.closed:
		return "closed"
	case len(s.flight) > 0 && now.Sub(s.sentAt) > s.l.timeout:
		logState(s, "no answer for "+now.Sub(s.sentAt).Round(time.Millisecond).String())
		return s.logged
	case s.conn == nil && s.down != "":
		return s.down
	case len(s.queue) > maxQueue:
		return "too many commands are queued"
	}
	return faultOf(s.clock, now)
}

// patienceOf returns how long a caller should wait for the answer to a command that it pushes now.
func patienceOf(s *stream, now time.Time) time.Duration {
	if s.conn == nil && s.down == "" {
		return s.l.timeout + longer(0, connectTime-now.Sub(s.connects))
	}
	return s.l.timeout
}

// takeBatch moves queued commands into a batch, unless one is under way, and returns the connection and what to write to it.
func takeBatch(s *stream) (net.Conn, []byte) {
	if s.conn == nil || len(s.flight) > 0 || len(s.queue) == 0 {
		return nil, nil
	}
	now := time.Now()
	out := []byte{}
	n := 0
	for n < len(s.queue) && len(s.flight) < batch {
		c := s.queue[n]
		n++
		if needless(c, now) {
			if c.op != opRelease {
				s.fail(c, "given up before it was sent")
			}
			continue
		}
		sending(c, now)
		s.flight = append(s.flight, c)
		switch {
		case c.op == opPing:
			out = append(out, "*1\r\n$4\r\nTIME\r\n"...)
		case c.plain != "":
			out = append(out, c.plain...)
		default:
			out = append(out, scriptOf(c, s.known[c.op])...)
			s.known[c.op] = true
		}
	}
	s.queue = append([]*command{}, s.queue[n:]...)
	s.sentAt = now
	return s.conn, out
}

// write sends a batch. If that fails, it closes the connection, which the reader notices.
func write(conn net.Conn, out []byte) {
	if len(out) == 0 {
		return
	}
	_, err := conn.Write(out)
	if err != nil {
		_ = conn.Close()
	}
}

// start is a function of its own, because under Yaegi a go statement in a loop sees the loop's last variable.
func (s *stream) start() { go guarded(s.run) }

// run keeps a connection to the master until the locker is closed.
func (s *stream) run() {
	defer s.l.done.Done()
	for s.l.runs() {
		s.once()
		s.awaitRetry()
	}
}

// once makes a connection and uses it until it ends. A panic would end Traefik.
func (s *stream) once() {
	defer func() {
		if p := recover(); p != nil {
			s.l.panicked(p)
			s.lost("internal error")
		}
	}()
	s.leave()
	conn, r, srv, err := connect(s.address)
	if err != nil {
		s.unreachable(err.Error(), time.Time{})
		return
	}
	defer func() { _ = conn.Close() }()
	why, until, out := s.begin(conn, srv)
	if why != "" {
		s.unreachable(why, until)
		return
	}
	for {
		write(conn, out)
		a, err := readAnswer(r)
		if err == nil {
			out, err = handle(s, a)
		}
		if err != nil {
			s.lost(err.Error())
			return
		}
	}
}

// leave records that the master has no connection: another master may connect to the server now.
func (s *stream) leave() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.seat.used = ""
}

// begin starts to use a new connection if the server has a vote, and returns the first batch to write.
func (s *stream) begin(conn net.Conn, srv *server) (why string, until time.Time, out []byte) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	why, until = s.admit(srv)
	if why == "" && s.l.closed {
		why = "closed"
	}
	if why != "" {
		return why, until, nil
	}
	s.conn = conn
	s.used = time.Now()
	s.known = map[int]bool{}
	s.down = ""
	s.downUntil = time.Time{}
	logState(s, "")
	_, first := takeBatch(s)
	return why, until, first
}

// handle takes an answer, and returns the next batch to write.
func handle(s *stream, a *answer) ([]byte, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if len(s.flight) == 0 {
		return nil, errProtocol
	}
	c := s.flight[0]
	s.flight = s.flight[1:]
	settle(s, c, a)
	_, out := takeBatch(s)
	return out, nil
}

// unreachable takes the master out of use for a while, because it has no connection on which it could vote.
func (s *stream) unreachable(why string, until time.Time) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.takeDown(why)
	if until.After(s.downUntil) {
		s.downUntil = until
	}
	logState(s, why)
	kept := []*command{}
	now := time.Now()
	for _, c := range s.queue {
		if c.op != opRelease {
			s.fail(c, why)
		} else if !needless(c, now) {
			kept = append(kept, c)
		}
	}
	s.queue = kept
}

// lost ends the use of a connection. What was under way may or may not have been done.
func (s *stream) lost(why string) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	flight, useless := s.flight, !s.served
	s.conn = nil
	s.flight = nil
	s.served = false
	s.connects = time.Now()
	logState(s, "connection lost: "+why)
	if useless {
		s.takeDown(why)
	}
	for _, c := range flight {
		switch c.op {
		case opAcquire:
			c.vote.unsure = true
		case opExtend:
			if c.until.After(c.vote.mayTake) {
				c.vote.mayTake = c.until
			}
		case opRelease:
			s.owe(c)
			continue
		}
		s.fail(c, why)
	}
}

// takeDown takes the master out of use for a pause, which grows with each failure.
func (s *stream) takeDown(why string) {
	s.pause = shorter(longer(2*s.pause, leastPause), mostPause)
	s.down = why
	s.downUntil = time.Now().Add(s.pause)
}

// awaitRetry waits until the master may be tried again.
func (s *stream) awaitRetry() {
	for s.l.runs() {
		pause := s.l.downFor(s)
		if pause <= 0 {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.l.closing:
		}
		timer.Stop()
	}
}

// logState logs that the master fails, or has a vote again, once for each change.
func logState(s *stream, why string) {
	if (why == "") != (s.logged == "") || strings.HasPrefix(why, restarted) && !strings.HasPrefix(s.logged, restarted) {
		if why == "" {
			s.l.note("master " + s.address.name + " votes again")
		} else {
			s.l.note("master " + s.address.name + " does not vote: " + why)
		}
	}
	s.logged = why
}
