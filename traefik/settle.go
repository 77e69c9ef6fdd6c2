package traefik

import (
	"strings"
	"time"
)

// hungTime is how long a connection without answers is kept. A server that hangs reads commands in the order in which they were sent
// when it wakes; a new connection would lose that order.
const hungTime = 10 * time.Second

// settle takes the answer to a command.
func settle(s *stream, c *command, a *answer) {
	now := time.Now()
	s.used = now
	if a.kind == '-' && strings.HasPrefix(a.text, "NOSCRIPT") { // it had no effect: send it again
		s.known[c.op] = false
		s.queue = append([]*command{c}, s.queue...)
		if c.op == opAcquire {
			c.vote.mayHold = false
		}
		return
	}
	if a.kind == '-' {
		s.refused(c, a.text)
		return
	}
	kinds := kindsOf(a)
	switch {
	case c.op == opPing:
		observeTime(s, serverTime(a), c, now)
	case c.op == opRegister:
		if kinds == "*::$" {
			observeTime(s, a.items[0].n, c, now)
		}
		s.l.sets.answered(s.index, c, a)
	case c.op == opAcquire && kinds == ":":
		grantedBy(s, c, c.a.proposal, a.n, true, now)
	case c.op == opAcquire && kinds == "*:::":
		grantedBy(s, c, a.items[0].n, a.items[1].n, false, now)
	case c.op == opAcquire && kinds == "*:$::":
		observeTime(s, a.items[2].n, c, now)
		c.vote.mayHold = false
		left := time.Duration(a.items[0].n) * time.Millisecond
		c.a.refused(c, strings.TrimSuffix(a.items[1].text, "+"), left)
	case c.op == opExtend && kinds == "*::":
		s.extended(c, a.items[0].n, a.items[1].n, now)
	case c.op == opRelease && kinds == ":":
		releasedBy(s, c, a.n)
	default:
		s.refused(c, "unexpected answer: is this a Redis server?")
	}
}

// observeTime takes the time in an answer, and returns why the vote doesn't count because of it, or "".
func observeTime(s *stream, us int64, c *command, now time.Time) string {
	if us > 0 {
		observe(s.clock, us, c.sentAt, now)
	}
	s.served = true
	fault := faultOf(s.clock, c.sentAt) // what was sent before a jump was seen doesn't count either
	logState(s, fault)
	return fault
}

func grantedBy(s *stream, c *command, fence, us int64, alone bool, now time.Time) {
	s.pause = 0
	c.vote.alone = alone
	if fault := observeTime(s, us, c, now); fault != "" {
		c.a.failed(c)
		return
	}
	c.vote.fence = fence
	countGrant(c.a, c)
}

func (s *stream) extended(c *command, status, us int64, now time.Time) {
	if fault := observeTime(s, us, c, now); fault != "" {
		c.a.failed(c)
		return
	}
	switch status {
	case 1:
		c.a.stored(c)
	case -1:
		c.a.taken(c)
	case -2: // released by force
		c.a.taken(c)
	default:
		c.a.failed(c)
	}
}

func releasedBy(s *stream, c *command, status int64) {
	if c.plain != "" && status == 0 { // another waits, or the lock is gone: the script finds out which
		c.plain = ""
		s.queue = append([]*command{c}, s.queue...)
		return
	}
	if !acknowledged(c, status == 1) {
		s.owe(c)
	}
	countRelease(c.a, c, status == 1)
}

// refused takes an error that the server has answered. The command had no effect, and will have none.
func (s *stream) refused(c *command, why string) {
	switch c.op {
	case opAcquire:
		c.vote.mayHold = false
	case opRelease:
		s.owe(c)
	}
	s.fail(c, why)
	logState(s, why)
	for _, unusable := range []string{"READONLY", "MASTERDOWN", "LOADING", "NOAUTH", "NOPERM", "OOM", "MISCONF", "BUSY", "MOVED"} {
		if strings.HasPrefix(why, unusable) && s.conn != nil { // a new connection finds out when it may vote again
			_ = s.conn.Close()
			s.takeDown(why)
			return
		}
	}
}

// fail counts a command as one without an answer.
func (s *stream) fail(c *command, why string) {
	switch {
	case c.op == opRegister:
		if strings.HasPrefix(why, "NOPERM") || strings.HasPrefix(why, "ERR") {
			s.l.sets.answered(s.index, c, &answer{kind: '-', text: why})
		} else {
			s.l.sets.answered(s.index, c, nil)
		}
	case c.op == opRelease && c.a != nil:
		countRelease(c.a, c, false)
	case c.a != nil:
		c.a.failed(c)
	}
}

// owe schedules a release for repetition, unless the TTL will have ended before. The repeated one leaves the queue alone, which may
// have changed by then.
func (s *stream) owe(c *command) {
	now := time.Now()
	if !now.Before(lasts(c)) {
		return
	}
	again := &command{op: opRelease, words: c.words, a: c.a, vote: c.vote, phase: -1, until: c.until, due: now.Add(owedGap)}
	again.body = c.a.releaseBody(0, 0)
	s.owed = append(s.owed, again)
}

// attend does what is due, and reports whether the connection is hung and must be closed.
func (s *stream) attend(now time.Time) (hung bool) {
	kept := []*command{}
	for _, c := range s.owed {
		if c.due.After(now) {
			kept = append(kept, c)
		} else if !needless(c, now) {
			s.queue = append(s.queue, c)
		}
	}
	s.owed = kept
	if len(s.flight) > 0 {
		return now.Sub(s.sentAt) > hungTime
	}
	if s.conn != nil && len(s.queue) == 0 && now.Sub(s.used) >= probeGap {
		s.used = now
		push(s, &command{op: opPing})
	}
	return false
}
