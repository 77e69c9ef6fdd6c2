package link

import (
	"errors"
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

// settle takes the replies of a batch: it passes them on to the callers, but first puts aside what must be
// sent again, and the releases that must be repeated.
func (s *Stream) settle(b *batch) {
	now := time.Now()
	s.mu.Lock()
	for _, c := range b.commands {
		c.answered()
	}
	elsewhere := s.moved(b)
	s.mu.Unlock()
	elsewhere.answer()
	err, known := s.verdict(b, now)
	switch {
	case errors.Is(err, protocol.ErrReplica):
		s.DataLost()
	case errors.Is(err, protocol.ErrLoading):
		s.reconnect()
	}
	s.mu.Lock()
	var settled []*Command
	again := s.repeat(b.commands)
	for _, c := range b.commands {
		if slices.Contains(again, c) {
			continue
		}
		settled = append(settled, c)
		release := c
		if c.Op == protocol.OpAcquire && c.former != nil {
			release = c.takeFormer()
			if release.Reply.Status = c.Reply.Former; release.Reply.Status == protocol.StatusNone {
				release.Reply.Err = c.Reply.Err
			}
			settled = append(settled, release)
		}
		if release.Op == protocol.OpRelease && !release.acknowledged() {
			s.owe(release, now)
		}
	}
	s.mu.Unlock()
	for _, c := range settled {
		c.deliver()
	}
	if known {
		s.note(err)
	}
}

// DataLost has the master excluded until all leases are over that its server may have forgotten, and greeted
// anew. For the nodes of a Redis Cluster it does nothing: the cluster itself reports that a slot has moved.
func (s *Stream) DataLost() {
	if s.cluster != nil {
		return
	}
	s.seat.DataLost(time.Now())
	s.reconnect()
}

// reconnect ends the connection; run makes a new one.
func (s *Stream) reconnect() {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// verdict returns what the replies say about the master: the error for which it is unusable, or nil if it is
// usable. known is false if they say nothing either way.
func (s *Stream) verdict(b *batch, now time.Time) (err error, known bool) {
	var clock int64
	var votes, lives bool
	for _, c := range b.commands {
		refused := errors.Is(c.Reply.Err, protocol.ErrRefused)
		switch asks := c.Op == protocol.OpAcquire || c.Op == protocol.OpTrial; {
		case c.Op == protocol.OpMemory && refused: // locks don't need the right to it
			lives = true
		case errors.Is(c.Reply.Err, protocol.ErrUnusable):
			err = c.Reply.Err
		case c.Reply.Err == nil && asks:
			votes = true
		case c.Reply.Err == nil || refused: // it lives, even if it refused this one command
			lives = true
		case err == nil:
			err = c.Reply.Err
		}
		if c.Op == protocol.OpMemory && c.Reply.Err == nil {
			s.seat.HasMemory(redis.Memory(c.Reply.Lines))
		}
		clock = max(clock, c.Reply.Time)
		s.Clock.RaiseMark(c.Reply.Mark)
	}
	if votes || lives && !errors.Is(err, protocol.ErrUnusable) {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if clock > 0 {
		s.Clock.Observe(clock, b.sentAt, now)
	}
	if fault := s.Clock.Fault(b.sentAt); err == nil && fault != nil {
		// Replies to what was sent before a jump was noticed don't count either.
		err = fault
		for _, c := range b.commands {
			if c.Reply.Err == nil && (c.Op == protocol.OpAcquire || c.Op == protocol.OpExtend) {
				c.Reply = protocol.Reply{Err: err, Former: c.Reply.Former}
			}
		}
	}
	if err == nil || lives || votes {
		s.answeredAt, s.usedAt = now, now
		s.latency.observe(now.Sub(b.sentAt))
	}
	switch {
	case errors.Is(err, protocol.ErrUnusable), errors.Is(err, protocol.ErrUnreachable):
		s.down(err, now)
	case err == nil && !votes && errors.Is(s.reported, protocol.ErrUnusable):
		return nil, false
	case err == nil:
		s.downUntil, s.downErr, s.pause = time.Time{}, nil, 0
	}
	return err, true
}

// repeat puts commands that had no effect back at the head of the queue, in their order, and returns them:
//   - scripts that the server doesn't know, or no longer;
//   - acquires that were Fast, of keys that aren't simply free;
//   - plain releases that met a waiter's mark, and must be sent as the script that wakes the waiter;
//   - acquires that were refused only because they were in flight behind such a release.
//
// It leaves alone what its caller has given up: the release that follows may be in flight already, and must
// not be overtaken. Callers hold mu.
func (s *Stream) repeat(answered []*Command) (again []*Command) {
	for _, c := range answered {
		release := c.Op == protocol.OpRelease
		if release && len(s.resent) > 0 {
			s.resent = slices.DeleteFunc(s.resent, func(token string) bool { return token == c.Token })
		}
		noScript := errors.Is(c.Reply.Err, protocol.ErrNotExecuted)
		inVain := c.Alone && c.Reply.Status == protocol.StatusExpired
		overtook := c.Reply.Status == protocol.StatusHeld && slices.Contains(s.resent, c.Reply.Holder)
		if !noScript && !inVain && !overtook || !release && c.givenUp() {
			continue
		}
		if release {
			s.resent = append(s.resent, c.Token)
		}
		c.Alone, c.Fast, c.Reply = false, false, protocol.Reply{}
		if c.Op == protocol.OpAcquire {
			s.acquires++
		}
		again = append(again, c)
	}
	if len(again) > 0 {
		s.queue = slices.Insert(s.queue, 0, again...)
	}
	return again
}

// owe schedules the repetition of a release, unless the key will have expired by then. A release that was to
// leave a ticket is repeated without one, as the caller may have left the queue since. Callers hold mu.
func (s *Stream) owe(release *Command, now time.Time) {
	until := release.acquire.mayTake.Add(4 * OwedGap)
	if release.until.After(until) {
		until = release.until
	}
	if !now.Before(until) || s.closing && (release.Reply.Err == nil || errors.Is(release.Reply.Err, protocol.ErrRefused)) {
		return
	}
	again := *release
	again.To, again.Reply = nil, protocol.Reply{}
	again.until, again.due = until, now.Add(OwedGap)
	if again.Queue {
		again.Queue, again.Polls, again.Ticket = false, false, 0
	}
	to := s.home(&again)
	to.owed = append(to.owed, &again)
	if len(to.owed) == 1 {
		Signal(to.tend)
	}
}

// down has acquires refused for a pause, which doubles while the master keeps failing. Callers hold mu.
func (s *Stream) down(err error, now time.Time) {
	s.pause = min(max(2*s.pause, leastPause), MostPause)
	s.downErr, s.downUntil = err, now.Add(s.pause)
	var guard *admission.GuardError
	if errors.As(err, &guard) {
		s.downUntil = guard.Until
	}
}

// note logs and reports each change of whether the master is usable, but not each failure. A master that was
// down anyway is logged once more if it may have forgotten its locks.
func (s *Stream) note(err error) {
	s.mu.Lock()
	forgotten := errors.Is(err, admission.ErrRestarted) && !errors.Is(s.reported, admission.ErrRestarted)
	changed := !s.closing && (forgotten || (err == nil) != (s.reported == nil))
	if changed {
		if s.reported == nil {
			s.illSince = time.Now()
		}
		s.reported = err
	}
	s.mu.Unlock()
	if changed && errors.Is(err, protocol.ErrUnusable) {
		Signal(s.tend) // try it soon
	}
	name := s.master.String()
	if changed && err != nil && s.cluster != nil {
		Signal(s.cluster.asked)
	}
	switch {
	case !changed:
		return
	case err == nil:
		s.Logger.Info("master available again", "master", name)
		s.Watcher.Up(name)
		return
	case errors.Is(err, admission.ErrNoVote):
		s.Logger.Error("master excluded from the quorum", "master", name, "error", err)
	default:
		s.Logger.Warn("master unavailable", "master", name, "error", err)
	}
	s.Watcher.Down(s.stateWith(err))
}
