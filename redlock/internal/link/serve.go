package link

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	leastPause = 100 * time.Millisecond // before a failed master is tried again; the pause doubles
	MostPause  = time.Second            // with each failure, up to this

	memoryGap = 10 * time.Second // a server that says how much memory it uses is asked for that so often

	hungTime = 30 * time.Second // how long a connection is kept without any reply
)

// run connects to the master, again and again, for as long as the stream lives.
func (s *Stream) run(ctx context.Context) {
	defer close(s.ended)
	var next protocol.Conn
	for s.wanted(ctx) {
		var err error
		c := next
		if c == nil {
			s.seat.Disconnected()
			c, err = s.connect(ctx)
		}
		if err == nil {
			next, err = s.serve(ctx, c)
		}
		if err != nil {
			s.unreachable(err)
			s.awaitRetry(ctx)
		}
	}
	if next != nil {
		next.Close()
	}
	s.mu.Lock()
	s.owed = nil
	s.mu.Unlock()
	s.answer(protocol.Unsent(ErrClosed), true)
}

// wanted reports whether a connection is still needed.
func (s *Stream) wanted(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ctx.Err() == nil && (!s.closing || s.pending())
}

// unreachable marks the master as down because no connection could be made or the last one was of no use.
func (s *Stream) unreachable(err error) {
	s.mu.Lock()
	s.down(err, time.Now())
	s.mu.Unlock()
	s.answer(protocol.Unsent(err), false)
	s.note(err)
}

// answer fails the queued commands with err: all of them, or all but the releases, which wait for the next
// connection.
func (s *Stream) answer(err error, all bool) {
	s.mu.Lock()
	var kept, answered commands
	for _, c := range s.queue {
		if c.Op == protocol.OpRelease && !all {
			kept = append(kept, c)
			continue
		}
		c.Reply.Err = err
		answered = append(answered, c)
		if former := c.takeFormer(); former != nil && !former.unneeded() {
			kept = append(kept, former)
		}
	}
	s.queue, s.acquires = kept, 0
	s.mu.Unlock()
	for _, c := range answered {
		c.deliver()
	}
}

// awaitRetry waits until it is time to try the master again.
func (s *Stream) awaitRetry(ctx context.Context) {
	s.mu.Lock()
	until := s.downUntil
	s.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// serve uses a connection until it ends. next is a connection that already replaces it, if there is one. The
// error is nil if the connection was of any use, so that the next can be made without a pause.
func (s *Stream) serve(ctx context.Context, c protocol.Conn) (next protocol.Conn, err error) {
	began := time.Now()
	s.mu.Lock()
	prompt, asked := c.(protocol.Prompt)
	s.prompt = !asked || prompt.IsPrompt()
	s.conn, s.answeredAt, s.usedAt, s.memoryAt = c, began, began, began
	if s.latency.smoothed == 0 { // no greeting has measured the distance: probe at once
		s.usedAt = time.Time{}
	}
	s.downUntil, s.downErr = time.Time{}, nil
	// If it has refused a lock, the next lock will show whether it still does; what kept us from connecting is over.
	recovered := !errors.Is(s.reported, protocol.ErrUnusable) || errors.Is(s.reported, protocol.ErrUnreachable)
	s.mu.Unlock()
	if recovered {
		s.note(nil)
	}
	if s.seat.OnServing != nil {
		s.seat.OnServing()
	}

	var helpers sync.WaitGroup
	broken, stop := make(chan error, 1), make(chan struct{})
	helpers.Go(func() { broken <- s.read(c) })
	helpers.Go(func() { s.write(c, stop) })
	next, err = s.watch(ctx, c, broken)

	s.mu.Lock()
	s.conn, s.connectingSince = nil, time.Now()
	s.mu.Unlock()
	c.Close()
	close(stop)
	helpers.Wait()
	s.mu.Lock()
	for s.sending {
		s.sendEnded.Wait()
	}
	pending, useless := len(s.flight), s.answeredAt.Equal(began)
	s.mu.Unlock()
	if err == nil {
		err = protocol.ErrBroken
	}
	for range pending {
		s.landed(err)
	}
	if useless && next == nil {
		return nil, err
	}
	return next, nil
}

// read settles the batches in flight as their replies come, until the connection ends.
func (s *Stream) read(c protocol.Conn) error {
	for {
		s.rest(c)
		if err := c.Wait(); err != nil {
			return err
		}
		s.mu.Lock()
		if len(s.flight) == 0 {
			s.mu.Unlock()
			return protocol.ErrMalformed
		}
		cmds := s.flight[0].cmds
		s.mu.Unlock()
		err := c.Receive(cmds)
		s.landed(nil)
		if err != nil {
			return err
		}
	}
}

// write sends what is queued whenever it is signaled, until stop is closed.
func (s *Stream) write(c protocol.Conn, stop <-chan struct{}) {
	for {
		select {
		case <-s.work:
		case <-stop:
			return
		}
		runtime.Gosched() // let goroutines that are about to push share the batch
		s.mu.Lock()
		s.flushAll(c)
		s.mu.Unlock()
	}
}

// flushAll sends what is queued, as far as the window of batches in flight allows. Callers hold mu.
func (s *Stream) flushAll(c protocol.Conn) {
	for s.conn == c && !s.sending && len(s.queue) > 0 && len(s.flight) < min(c.Window(), s.latency.window()) {
		s.flush()
		s.sentForOthers()
	}
}

// watch does what becomes due on a connection until it ends. next is the connection that replaces it: a
// server that doesn't answer on this one has answered on that.
func (s *Stream) watch(ctx context.Context, c protocol.Conn, broken <-chan error) (next protocol.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	check := s.newHangCheck(ctx)
	defer check.end()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	s.SendSoon()
	for {
		select {
		case err := <-broken:
			return nil, fmt.Errorf("%w: %w", protocol.ErrBroken, err)
		case <-ctx.Done():
			return nil, ErrClosed
		case next := <-check.replacement:
			if unsubscribe := s.unsubscribe.Load(); unsubscribe != nil { // its connection was lost in the same way, perhaps
				(*unsubscribe)()
			}
			return next, fmt.Errorf("%w: the server did not answer on it, but answers on a new one", protocol.ErrBroken)
		case <-s.tend:
		case <-timer.C:
		}
		due, over := s.attend(c, check)
		if over {
			return nil, ErrClosed
		}
		timer.Reset(time.Until(due))
	}
}

// attend does what is due and returns when it must run again. over reports that the stream is closing and
// has nothing left to do.
func (s *Stream) attend(c protocol.Conn, check *hangCheck) (due time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	n := slices.IndexFunc(s.owed, func(c *Command) bool { return c.due.After(now) })
	if n < 0 {
		n = len(s.owed)
	}
	s.queue = append(s.queue, s.owed[:n]...)
	s.owed.drop(n)
	idle := len(s.queue) == 0 && len(s.flight) == 0
	if s.closing && !s.pending() {
		return now, true
	}
	gap := admission.ProbeGap
	if errors.Is(s.reported, protocol.ErrUnusable) {
		gap = MostPause
	}
	if idle && now.Sub(s.usedAt) >= gap {
		s.queue = append(s.queue, &Command{Command: s.probe()})
		s.usedAt = now
	}
	if s.conn == c && s.tellsMemory && now.Sub(s.memoryAt) >= memoryGap {
		s.queue = append(s.queue, &Command{Command: protocol.Command{Op: protocol.OpMemory}})
		s.memoryAt = now
	}
	if len(s.queue) > 0 {
		s.SendSoon()
	}
	due = now.Add(gap)
	if idle {
		due = s.usedAt.Add(gap)
	}
	if len(s.owed) > 0 {
		due = earlier(due, s.owed[0].due)
	}
	switch silence, timeout := s.silence(now), s.latency.timeout(); {
	case silence > hungTime:
		c.Close()
	case silence > timeout:
		due = earlier(due, check.start(now))
		if s.cluster != nil {
			Signal(s.cluster.asked)
		}
	case silence > 0:
		due = earlier(due, s.flight[0].sentAt.Add(timeout+1))
	}
	return due, false
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
