// Package hook lets package inspect, and packages that tests use, call the inside of package redlock. Nothing else uses it.
package hook

import (
	"context"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Package redlock sets these.
var (
	// MasterOf makes a redlock.Master from a protocol.Master.
	MasterOf func(protocol.Master) any
	// InsideOf returns the inside of a *redlock.Locker, or an error for one, or for a context, that was never made.
	InsideOf func(ctx context.Context, locker any) (Inside, error)
)

// Inside is the part of a Locker that package inspect needs: the masters, and four things that only the Locker can do.
type Inside struct {
	*vote.Masters
	MaxTTL time.Duration
	// StatusOf returns the []redlock.KeyStatus of one key. Keys looks at all keys, of which a process may have many thousands.
	StatusOf func(key string) any
	// EndByForce ends the lock of this process with this token, if there is one, and reports whether it has. The key is as it is on the masters; by
	// is who asks for it.
	EndByForce func(key, token, by string) bool
	// UnlockForgetting frees a *redlock.Lock, and makes the masters forget the result of an earlier one.
	UnlockForgetting func(lock any) error
	// Difference returns how another process differs from this one.
	Difference func(*heartbeat.Process) heartbeat.Difference
}
