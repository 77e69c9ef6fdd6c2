package middleware

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/response"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// brokenOff reports whether a handler that has returned may have left work behind: it failed, its client has left, or its
// answer says that it gave up on an upstream.
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
	default: // to store the answer may take long
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
