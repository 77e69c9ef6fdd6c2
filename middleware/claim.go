package middleware

import (
	"context"
	"errors"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/answer"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// claim takes the lock on the delivery, which all processes share: the request that doesn't get it comes second. It is held
// besides the lock on the keys, until unlockClaim is called. If the answer to the delivery is remembered, it returns that.
func (s *serving) claim(alone bool) (*answer.Answer, error) {
	opts := s.rule.options
	if !alone { // it ends with the request, or with its lock
		opts = append(opts, redlock.WithMaxHold(0))
	}
	if s.rule.Remember > 0 {
		opts = append(opts, redlock.WithRecall())
	}
	s.claimKey = DeliveryKey(s.turn.keys, s.delivery, s.scope)
	lock, err := s.turn.locker.TryLock(s.r.Context(), s.claimKey, opts...)
	var held *redlock.HeldError
	var done *redlock.DoneError
	switch {
	case errors.As(err, &done):
		return s.recall(done.Result)
	case errors.As(err, &held):
		return nil, &duplicateError{held}
	}
	s.claimed = lock
	return nil, err
}

// unlockClaim releases the lock on the delivery, with the answer that the masters are to remember, or nil. It returns what tells the
// log and the Observer how that went.
func (s *serving) unlockClaim(result []byte) (tell func()) {
	tell = func() {}
	s.claimOnce.Do(func() {
		switch {
		case s.claimed == nil:
		case result == nil:
			tell = s.unlock(s.claimed)
		default:
			tell = s.unlockWith(result)
		}
	})
	return tell
}

// releaseWith releases the claim when the lock on the keys is lost, so that it doesn't outlast that if the request is stuck.
func (s *serving) releaseWith(lock *redlock.Lock) {
	context.AfterFunc(lock.Context(), func() {
		if context.Cause(lock.Context()) != context.Canceled { // Unlock was not called, with which the claim is released too
			s.unlockClaim(nil)()
		}
	})
}
