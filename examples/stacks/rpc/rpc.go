// Package rpc has calls of Connect, gRPC and gRPC-Web run one at a time for each key: an interceptor for servers of connectrpc.com/connect.
package rpc

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

type fence struct{}

// Fence returns the fencing token of the lock that a call holds, which its writes should carry.
func Fence(ctx context.Context) (token uint64, locked bool) {
	token, locked = ctx.Value(fence{}).(uint64)
	return token, locked
}

// OneAtATime returns an interceptor under which the unary calls with one key run one after the other, on all servers with these masters. The
// context of a call ends if its lock is lost. The key is best made of the procedure and a field of the message; a call that has none ("")
// is refused, as one that is spelled in another way must not pass without a lock.
//
// A call whose key is held for longer than wait gets the code Aborted, which means that nothing was done; Unavailable means that too few
// masters answer. Unknown is the code of a call that lost its lock: it may have done its work, or a part.
func OneAtATime(locker *redlock.Locker, key func(connect.AnyRequest) string, wait time.Duration) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			k := key(request)
			if k == "" {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the request doesn't name what it is about"))
			}
			lock, err := locker.Lock(ctx, k, redlock.WithWait(wait))
			if err != nil {
				return nil, refusal(err)
			}
			defer func() { _ = lock.Unlock() }() // after a panic; otherwise it is unlocked below
			ctx, cancel := lock.WithContext(context.WithValue(ctx, fence{}, lock.Fence()))
			defer cancel()
			response, err := next(ctx, request)
			if unlocked := lock.Unlock(); lost(unlocked) {
				return nil, connect.NewError(connect.CodeUnknown, errors.New("the lock was lost: look what was done before you repeat it"))
			}
			return response, err
		}
	}
}

func refusal(err error) error {
	switch {
	case errors.Is(err, redlock.ErrHeld):
		return connect.NewError(connect.CodeAborted, errors.New("another call for this is running"))
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrTooManyWaiters), errors.Is(err, redlock.ErrClosed):
		return connect.NewError(connect.CodeUnavailable, errors.New("no lock can be taken now"))
	}
	return err // of the context: connect knows its code
}

// lost reports whether another call may have run beside this one.
func lost(err error) bool {
	return errors.Is(err, redlock.ErrLost) || errors.Is(err, redlock.ErrExpired) || errors.Is(err, redlock.ErrNotOwner)
}
