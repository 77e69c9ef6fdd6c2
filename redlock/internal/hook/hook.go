// Package hook gives package inspect, and packages for tests, access to unexported parts of package redlock. Nothing else uses it.
package hook

import (
	"context"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/vote"
)

// Package redlock sets these.
var (
	// MasterOf makes a redlock.Master from a protocol.Master.
	MasterOf func(protocol.Master) any
	// InsideOf returns the Inside of a *redlock.Locker. It returns an error if the Locker is nil or was not made by New or Open, or if ctx is nil.
	InsideOf func(ctx context.Context, locker any) (Inside, error)
)

// Inside has the parts of a Locker that packages inspect and redlocktest need.
type Inside struct {
	*vote.Masters
	MaxTTL           time.Duration
	Prefix, Instance string
	// Keys returns what inspect.Keys does.
	Keys func(prefix string) []*KeyStatus
	// StatusOf returns the statuses of one key. Keys would go through all keys, of which a process may have many thousands.
	StatusOf func(key string) []KeyStatus
	// EndByForce ends the lock of this process with this token, if there is one, and reports whether it has. key is the key's name on the masters; by
	// is the operator.
	EndByForce func(key, token, by string) bool
	// Lose ends the locks of this process on a key as if their leases were over, and reports whether there were any.
	Lose func(key string) bool
	// UnlockForgetting frees a *redlock.Lock, and makes the masters forget the result of an earlier lock.
	UnlockForgetting func(lock any) error
	// Difference returns how another process differs from this one.
	Difference func(*heartbeat.Process) heartbeat.Difference
}

// KeyStatus has the fields of inspect.KeyStatus.
type KeyStatus struct {
	Key, Label   string
	Held         bool
	Since, Until time.Time
	Fence        uint64
	Request      *inside.Request
	Waiting      int
	Line         []Call
	Slot, Slots  int
}

// Call has the fields of inspect.Call.
type Call struct {
	Label   string
	Since   time.Time
	Request *inside.Request
}
