package middleware

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func (rule *Serializer) stopping() bool { return rule.Shutdown != nil && rule.Shutdown.Err() != nil }

// uncontended is how long it takes to get a lock that is free: only a request that hasn't got its lock by then is treated as
// one that waits.
const uncontended = 10 * time.Millisecond

// wait calls lock, which waits, or try, which doesn't, if the server is about to stop.
func (s *serving) wait(try, lock func(context.Context) (*redlock.Lock, error)) (got *redlock.Lock, err error) {
	if s.rule.stopping() {
		got, err = try(s.r.Context())
	} else {
		got, err = s.waitWhileServing(lock)
	}
	// A wait that was ended before its first attempt had an answer has no other error.
	ended := errors.Is(err, context.Canceled) && !errors.Is(err, redlock.ErrNoQuorum) && s.r.Context().Err() == nil
	if (ended || errors.Is(err, redlock.ErrHeld)) && s.rule.stopping() {
		err = errStopping
	}
	return got, err
}

// waitWhileServing waits until the wait is over or the server is about to stop. Meanwhile it reads the body ahead.
func (s *serving) waitWhileServing(acquire func(context.Context) (*redlock.Lock, error)) (*redlock.Lock, error) {
	s.rule.observeWaits(1)
	defer s.rule.observeWaits(-1)
	if _, ok := s.r.Body.(*body); !ok && s.rule.Shutdown == nil { // there is nothing to do meanwhile
		return acquire(s.r.Context())
	}
	ctx, cancel := context.WithCancel(s.r.Context())
	defer cancel()
	var waits sync.WaitGroup
	waits.Add(1)
	unhook := func() bool { return false }
	begins := time.AfterFunc(uncontended, func() {
		defer waits.Done()
		if s.rule.Shutdown != nil {
			unhook = context.AfterFunc(s.rule.Shutdown, cancel)
		}
		if b, ok := s.r.Body.(*body); ok {
			b.readAhead(ctx)
		}
	})
	lock, err := acquire(ctx)
	if !begins.Stop() {
		cancel()
		waits.Wait()
		unhook()
	}
	return lock, err
}
