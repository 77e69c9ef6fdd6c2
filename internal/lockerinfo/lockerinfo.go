// Package lockerinfo has what package middleware needs to know of a redlock.Locker, and what users of package redlock
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
	// Logger returns the Locker's logger.
	Logger func(locker any) *slog.Logger
)

// DefaultMaxHold is how long a request may hold its lock, in package middleware and in the plugin for Traefik, where
// nothing else is set.
const DefaultMaxHold = 5 * time.Minute
