package middleware

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/response"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// run serves the request with its lock, which is released before the response ends.
func (s *serving) run() error {
	w, written := s.wrap()
	recorder := s.newRecorder()
	if recorder != nil {
		written.Recorder, s.why = recorder, ReasonBrokenOff // unless the handler returns
	}
	brokenOff, panicked := true, true // unless the handler returns: net/http's proxies break off a response by a panic
	defer func() {
		written.End(panicked)
		s.noteSlowClient(written)
	}()
	defer func() { s.release(brokenOff) }()
	defer func() { s.rule.pace.add(time.Since(s.acquired)) }()
	s.acquired = time.Now()
	got := s.own.Acquisition()
	s.observeAcquired(got.Waited)
	if ctx := context.Background(); s.rule.Logger.Enabled(ctx, slog.LevelDebug) {
		s.rule.Logger.LogAttrs(ctx, slog.LevelDebug, "request has its lock", append([]slog.Attr{slog.String("rule", s.turn.Rule),
			slog.Duration("waited", got.Waited), slog.Int("position", got.Position), slog.String("via", string(got.Via))}, s.turn.identity()...)...)
	}
	defer s.traceLoss()()
	if recorder != nil {
		defer s.acceptIdentity()()
	}
	err := s.handOver(w)
	panicked = false
	brokenOff = s.brokenOff(written, err)
	lost := s.own.Err()
	s.conclude(recorder, written, err != nil || brokenOff, lost)
	if lost == nil {
		return err
	}
	turn := s.turn
	turn.Outcome, turn.Detail = OutcomeLost, detailOf(OutcomeLost, lost)
	if written.Begun {
		s.rule.logOutcome("request lost its lock after its response had begun", turn, lost)
		return err
	}
	s.rule.logOutcome("request lost its lock", turn, lost, slog.Int("status", http.StatusInternalServerError))
	return &Refusal{Status: http.StatusInternalServerError, Turn: turn, Err: errors.Join(lost, err)}
}

// handOver calls the next handler, with the turn in the context, and the fencing token, the slot and what is locked in the headers of its request.
func (s *serving) handOver(w http.ResponseWriter) error {
	s.turn.fenceHeader = s.rule.FenceHeader
	s.turn.setFence(s.r)
	s.turn.showSlot(s.r)
	s.showKey()
	ctx, cancel := s.handlerContext()
	defer cancel()
	err := s.next(w, s.r.WithContext(ctx))
	// The handlers that come after, such as those for errors, have no lock and must not find its token. Work that outlives the
	// handler, as behind http.TimeoutHandler, may still read the old header, which therefore stays as it is.
	s.r.Header = maps.Clone(s.r.Header)
	s.r.Header.Del(s.turn.fenceHeader)
	s.r.Header.Del(SlotHeader)
	s.turn.setOuterFence(s.r, s.turn.fenceHeader)
	s.turn.outer.showSlot(s.r)
	s.showOuterKey()
	return err
}

// handlerContext returns a context that ends with the lock, and with those of the rules around. Unless the handler shall run
// to its end, it also ends when the client leaves.
func (s *serving) handlerContext() (context.Context, context.CancelFunc) {
	lock := s.own
	if lock == nil { // a rule around this one has it
		lock = s.turn.Lock
	}
	if s.rule.runsToEnd() && s.turn.outer == nil { // the lock's context has the values of the request's, but not its end
		return context.WithValue(lock.Context(), turnKey{}, &s.turn), func() {}
	}
	ctx := context.WithValue(s.r.Context(), turnKey{}, &s.turn)
	if !s.rule.runsToEnd() {
		return lock.WithContext(ctx)
	}
	ctx, cancel := lock.WithContext(context.WithoutCancel(ctx))
	for outer := s.turn.outer; outer != nil; outer = outer.outer {
		// A lock that was released belongs to a request that has ended: this is background work, which it doesn't bound.
		if outer.Lock != nil && !errors.Is(outer.Lock.Err(), context.Canceled) {
			inner := cancel
			var cancelOuter context.CancelFunc
			ctx, cancelOuter = outer.Lock.WithContext(ctx)
			cancel = func() { cancelOuter(); inner() }
		}
	}
	return ctx, cancel
}

// pass serves the request without a lock of this rule.
func (s *serving) pass() error {
	if s.rule.Observer != nil {
		s.rule.Observer.Passed(s.rule.Name, s.turn.Outcome)
	}
	if s.turn.Outcome == OutcomeNoQuorum && s.rule.Remember > 0 && s.delivery.ID != "" {
		defer s.noteRemembered(0, ReasonNoQuorum, nil)
	}
	s.turn.setOuterFence(s.r, s.rule.FenceHeader)
	s.turn.outer.showSlot(s.r)
	s.showOuterKey()
	return s.next(s.w, s.r.WithContext(context.WithValue(s.r.Context(), turnKey{}, &s.turn)))
}

// brokenOff reports whether a handler that has returned may have left work behind: it failed, its client has left, or its
// response says that it gave up on an upstream.
func (s *serving) brokenOff(written *response.Writer, err error) bool {
	switch {
	case err != nil:
		return s.rule.Finished == nil || !s.rule.Finished(err)
	case s.r.Context().Err() != nil && !s.rule.runsToEnd():
		return true
	}
	return written.Status == http.StatusBadGateway || written.Status == http.StatusGatewayTimeout
}

// release releases the locks, after HoldAfterAbort if the handler has broken off. Until then the lock is renewed, and the
// requests that wait for it stay in line; a Locker that closes releases it at once.
func (s *serving) release(brokenOff bool) {
	lock := s.own
	s.ended = endOf(lock)
	if !brokenOff || s.rule.HoldAfterAbort == 0 || s.ended == OutcomeLost {
		s.releaseNow()
		return
	}
	timer := time.AfterFunc(s.rule.HoldAfterAbort, s.releaseNow)
	context.AfterFunc(lock.Context(), func() { // lost, closed, or at the end of max_hold
		if timer.Stop() {
			s.releaseNow()
		}
	})
}

// releaseNow releases the locks on the keys and on the delivery at once. Only then does it tell the log and the Observer: they may
// block.
func (s *serving) releaseNow() {
	defer s.observeReleased()
	defer s.room.leave()
	if s.turn.claimed == nil {
		s.unlock(s.own)()
		return
	}
	var keys sync.WaitGroup
	tellKeys := func() {}
	switch {
	case s.own == s.turn.claimed:
	case s.result == nil:
		tellKeys = s.unlock(s.own)
	default: // to store the response may take long
		keys.Go(func() { tellKeys = s.unlock(s.own) })
	}
	tellClaim := s.unlockClaim(s.result)
	keys.Wait()
	tellKeys()
	tellClaim()
	if s.result == nil && s.why != "" {
		s.noteRemembered(0, s.why, s.unremembered)
	}
}

// unlock releases a lock, and returns what tells the log if that went wrong.
func (s *serving) unlock(lock *redlock.Lock) (tell func()) {
	lost := lock.Err()
	err := lock.Unlock()
	return func() {
		switch {
		case lost != nil: // the Locker has logged it
		case errors.Is(err, redlock.ErrNoQuorum):
			s.rule.logSometimes(slog.LevelWarn, "release not confirmed; it is repeated until the lease ends", "release", append([]slog.Attr{slog.Any("error", err)}, s.turn.identity()...)...)
		case err != nil:
			s.rule.Logger.LogAttrs(context.Background(), slog.LevelError, "lock was lost before the request ended: another request with the same key may have run at the same time",
				append([]slog.Attr{slog.String("rule", s.turn.Rule), slog.Any("error", err)}, s.turn.identity()...)...)
		}
	}
}
