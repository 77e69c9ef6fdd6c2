package redlock

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxQueue  = 4096                   // acquires that may wait for one master
	maxBatch  = 256                    // commands in one pipeline
	redialGap = 100 * time.Millisecond // between attempts to reach a master that can't be connected to
	owedGap   = 250 * time.Millisecond // between attempts at a release that a master missed
)

// stream sends one master its commands, in order, in pipelines that concurrent callers share. The
// order is what makes a release certain: it can't overtake its acquire, however late the master
// reads both. Nobody waits for a stream: callers push, and give up when their own time is over.
type stream struct {
	options
	master  Master
	latency latency
	clock   masterClock
	hears   atomic.Bool // the master tells this Locker of keys that are free
	wake    chan struct{}
	ended   chan struct{} // closed when run returns

	mu        sync.Mutex
	queue     []*call
	acquires  int       // how many of the queue are acquires
	sentAt    time.Time // when the batch under way was sent; zero if none is
	downUntil time.Time // no acquire is taken before: the master could not be reached
	downErr   error
	failing   error // what the log was told last; nil while the master votes
	closing   bool

	// Of run alone.
	owed    []*call // releases that the master missed
	owedDue time.Time
	batch   []*call // empty, as cmds: kept for their room
	cmds    []*Command
}

func newStream(m Master, o options) *stream {
	s := &stream{
		master:  m,
		options: o,
		latency: latency{floor: o.timeout},
		clock:   masterClock{quarantine: o.maxTTL},
		wake:    make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
	go s.run()
	return s
}

// push queues a call, and has it sent.
func (s *stream) push(c *call) {
	s.enqueue(c)
	s.rouse()
}

// enqueue queues a call, to be sent with what comes until somebody rouses the stream. An acquire for
// a master that is known to be down is answered at once, unsent; a release is always taken: each
// follows an acquire, so their number is bounded by that of the locks.
func (s *stream) enqueue(c *call) {
	s.mu.Lock()
	err := s.refusal(c.Op)
	hung := err != nil && errors.Is(err, errHung)
	if err == nil {
		s.queue = append(s.queue, c)
		if c.Op == OpAcquire {
			s.acquires++
		}
	}
	s.mu.Unlock()
	if hung {
		s.note(err)
	}
	if err != nil {
		c.Reply.Err = unsent(err)
		c.deliver()
		if c.former != nil { // then it goes without the acquire
			s.enqueue(c.former)
		}
	}
}

var (
	errHung    = errors.New("no answer")
	errBacklog = fmt.Errorf("more than %d requests wait for this master", maxQueue)
)

// refusal says why a command isn't taken now, or nil. Callers hold mu.
func (s *stream) refusal(op Op) error {
	now := time.Now()
	switch {
	case s.closing:
		return ErrClosed
	case op == OpRelease:
		return nil
	case !s.sentAt.IsZero() && now.Sub(s.sentAt) > s.latency.timeout():
		return fmt.Errorf("%w for %v", errHung, now.Sub(s.sentAt).Round(time.Millisecond))
	case now.Before(s.downUntil):
		return s.downErr
	case !s.clock.trusted(now):
		return errClockJump
	case s.acquires >= maxQueue:
		return errBacklog
	}
	return nil
}

func (s *stream) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// close lets the stream send what is queued, for at most the grace, then closes the master and
// waits for run to end.
func (s *stream) close(grace time.Duration) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.rouse()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
	}
	err := s.master.Close()
	<-s.ended
	return err
}

func (s *stream) run() {
	defer close(s.ended)
	for {
		batch, last := s.take()
		if len(batch) == 0 {
			if last {
				return
			}
			s.sleep()
			continue
		}
		s.cmds = s.cmds[:0]
		for _, c := range batch {
			s.cmds = append(s.cmds, &c.Command)
		}
		start := time.Now()
		s.master.Do(s.cmds)
		s.settle(batch, start, time.Now(), last)
		clear(s.cmds)
		clear(batch)
		s.batch = batch[:0]
	}
}

// sleep waits until there is something to send.
func (s *stream) sleep() {
	if len(s.owed) == 0 {
		<-s.wake
		return
	}
	timer := time.NewTimer(time.Until(s.owedDue))
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	}
}

// take gives the next batch: releases owed that are due, then the queue, without what no longer
// needs to be sent. It is the last if the stream is closing and has nothing more.
func (s *stream) take() (batch []*call, last bool) {
	batch = s.batch
	s.mu.Lock()
	if len(s.owed) > 0 && (s.closing || !time.Now().Before(s.owedDue)) {
		batch, s.owed = append(batch, s.owed...), nil
	}
	var dropped []*call
	n := min(len(s.queue), maxBatch)
	for _, c := range s.queue[:n] {
		if c.Op == OpAcquire {
			s.acquires--
		}
		if !needless(c) {
			batch = append(batch, c)
			continue
		}
		dropped = append(dropped, c)
		if c.former != nil {
			batch = append(batch, c.former)
		}
	}
	if n == len(s.queue) {
		s.queue = s.queue[:0]
	} else {
		s.queue = append(s.queue[:0], s.queue[n:]...)
		s.rouse()
	}
	last = s.closing && len(s.queue) == 0
	if len(batch) > 0 {
		s.sentAt = time.Now()
	}
	s.mu.Unlock()
	for _, c := range dropped {
		c.deliver()
	}
	return batch, last
}

// settle hands out the replies of a batch, and keeps the releases that must be repeated.
func (s *stream) settle(batch []*call, start, now time.Time, last bool) {
	err := batch[0].Reply.Err
	var clock int64
	for _, c := range batch {
		if c.Reply.Err == nil {
			err = nil // a refusal of one command is not a failure of the master
		}
		clock = max(clock, c.Reply.Time)
	}
	if clock > 0 {
		s.clock.observe(clock, start, now)
	}
	if err == nil && !s.clock.trusted(start) { // what was queued before the jump was seen doesn't count either
		err = errClockJump
		for _, c := range batch {
			if c.Reply.Err == nil && (c.Op == OpAcquire || c.Op == OpExtend) {
				c.Reply = Reply{Err: err, Former: c.Reply.Former}
			}
		}
	}
	s.mu.Lock()
	s.sentAt = time.Time{}
	s.downUntil = time.Time{}
	if err == nil {
		s.latency.observe(now.Sub(start))
	} else if errors.Is(err, errUnreachable) {
		s.downUntil, s.downErr = now.Add(redialGap), err
		var guard *guardError
		if errors.As(err, &guard) {
			s.downUntil = guard.until
		}
	}
	s.mu.Unlock()

	for _, c := range batch {
		release := c
		if c.Op == OpAcquire && c.former != nil {
			release = c.former
			if release.Reply.Status = c.Reply.Former; release.Reply.Status == StatusNone {
				release.Reply.Err = c.Reply.Err
			}
		}
		if release.Op == OpRelease && !last && !acknowledged(release) && now.Before(release.until) {
			s.owe(release, now)
		}
		c.deliver()
		if release != c {
			release.deliver()
		}
	}
	s.note(err)
}

// owe has a release repeated. What it says of the queue may not be true any more by then.
func (s *stream) owe(release *call, now time.Time) {
	again := *release
	again.to, again.Reply = nil, Reply{}
	if again.Queue {
		again.Queue, again.Ticket, again.args = false, 0, nil
	}
	s.owed = append(s.owed, &again)
	s.owedDue = now.Add(owedGap)
}

// note tells the log and the observer that a master fails, or votes again: once for each change. A
// restart is one, also where the master was down before.
func (s *stream) note(err error) {
	s.mu.Lock()
	restarted := errors.Is(err, ErrRestarted) && !errors.Is(s.failing, ErrRestarted)
	changed := !s.closing && (restarted || (err == nil) != (s.failing == nil))
	if changed {
		s.failing = err
	}
	s.mu.Unlock()
	name := s.master.String()
	switch {
	case !changed:
		return
	case err == nil:
		s.logger.Info("master votes again", "master", name)
		s.observer.MasterUp(name)
		return
	case errors.Is(err, errNoVote):
		s.logger.Error("master may not vote", "master", name, "error", err)
	default:
		s.logger.Warn("master does not vote", "master", name, "error", err)
	}
	s.observer.MasterDown(name, err)
}
