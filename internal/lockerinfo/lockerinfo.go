// Package lockerinfo has what this module's other packages need to know of a redlock.Locker, and what users of package redlock
// need not see. Package redlock sets its functions; they take a *redlock.Locker as an any, because package redlock
// imports this one.
package lockerinfo

import (
	"log/slog"
	"time"
)

var (
	// CheckTTL returns what is wrong with a TTL for locks of the Locker, or nil.
	CheckTTL func(locker any, ttl time.Duration) error
	// MaxHold returns the max hold of the Locker's locks; 0 is for none.
	MaxHold func(locker any) time.Duration
	// Keyspace returns where the Locker's keys are, by its prefix and masters: Lockers with the same one see the same locks.
	Keyspace func(locker any) string
	// Logger returns the Locker's logger.
	Logger func(locker any) *slog.Logger
	// Warned is a redlock.Option for a Locker of whose settings another one has warned.
	Warned any
	// Succeeds is a redlock.Option for Lockers of one process that succeed each other, as at a reload: no two of them hold a key at the same
	// time, even if their prefixes or their masters differ.
	Succeeds any
)
