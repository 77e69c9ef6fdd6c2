package middleware

import (
	"cmp"
	"context"
	"errors"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// claim takes the lock on the delivery, which all processes share: the request that doesn't get it comes second, and may wait for the
// response to the first. It is held besides the lock on the keys, until unlockClaim is called. If the response to the delivery is
// remembered, it returns that.
func (s *serving) claim(alone bool) (*remembered.Response, error) {
	opts := append(s.options, redlock.WithConcurrency(1))
	if !alone { // it ends with the request, or with its lock
		opts = append(opts, redlock.WithMaxHold(0))
	}
	if s.rule.Remember > 0 {
		opts = append(opts, redlock.WithRecall())
	}
	try := func(ctx context.Context) (*redlock.Lock, error) {
		return s.turn.locker.TryLock(ctx, s.turn.claimKey, opts...)
	}
	for {
		var lock *redlock.Lock
		var err error
		if s.rule.waitsForResponses() {
			lock, err = s.wait(try, func(ctx context.Context) (*redlock.Lock, error) {
				return s.turn.locker.Lock(ctx, s.turn.claimKey, opts...)
			})
		} else {
			lock, err = try(s.r.Context())
		}
		var held *redlock.HeldError
		var done *redlock.DoneError
		switch {
		case errors.As(err, &done):
			if first, needs, err := s.recall(done.Result); needs == 0 {
				return first, err
			} else if err := s.waitToReplay(needs); err != nil {
				return nil, err
			}
			continue // the masters have it, and this request must not, while it waited
		case errors.As(err, &held):
			return nil, &duplicateError{held}
		}
		s.turn.claimed = lock
		return nil, err
	}
}

// setClaimKey finds out which key the delivery has. If a rule around this one has claimed that for the same request, it knows repeats,
// and remembers the response.
func (s *serving) setClaimKey() {
	if s.delivery.ID == "" {
		return
	}
	s.turn.claimKey = s.delivery.runningKey()
	if s.rule.Remember > 0 {
		s.turn.claimKey = s.delivery.Key()
	}
	if holder := s.turn.claimer(); holder != nil {
		s.delivery.ID, s.turn.claimKey = "", ""
		if s.turn.Lock == nil {
			s.turn.Lock = holder.Lock
		}
		s.turn.Key = cmp.Or(s.turn.Key, holder.Key)
	}
}

// waitsForResponses reports whether a repeat waits for the first to be answered.
func (rule *Serializer) waitsForResponses() bool { return rule.OnDuplicate == waits }

// unlockClaim releases the lock on the delivery, with the response that the masters are to remember, or nil. It returns what tells the
// log and the Observer how that went.
func (s *serving) unlockClaim(result []byte) (tell func()) {
	tell = func() {}
	if result != nil { // the lock on the keys may be lost at this moment, and have taken that on the delivery with it
		tell = func() { s.noteRemembered(0, ReasonLostLease, nil) }
	}
	s.claimOnce.Do(func() {
		switch {
		case s.turn.claimed == nil:
		case result == nil:
			tell = s.unlock(s.turn.claimed)
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
