package middleware

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func (rule *Serializer) stopping() bool { return rule.Shutdown != nil && rule.Shutdown.Err() != nil }

// uncontended is how long it takes to get a lock that is free: only a request that hasn't got its lock by then is treated as
// one that waits.
const uncontended = 10 * time.Millisecond

// waitForLock waits for the locks until the wait is over or the server is about to stop. Meanwhile it reads the body ahead.
func (s *serving) waitForLock(keys []string) (*redlock.Lock, error) {
	s.rule.observeWaits(1)
	defer s.rule.observeWaits(-1)
	if _, ok := s.r.Body.(*body); !ok && s.rule.Shutdown == nil { // there is nothing to do meanwhile
		return s.turn.locker.LockAll(s.r.Context(), keys, s.rule.options...)
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
	lock, err := s.turn.locker.LockAll(ctx, keys, s.rule.options...)
	if !begins.Stop() {
		cancel()
		waits.Wait()
		unhook()
	}
	return lock, err
}
