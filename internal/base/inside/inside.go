// Package inside gives this module's own packages and programs what package redlock exports to nobody. Package redlock sets the variables. Where a
// type is redlock's, which this package can't import, it is any, and the comment names the type.
package inside

import (
	"log/slog"
	"time"
)

// Locker has what a *redlock.Locker knows about itself.
type Locker struct {
	Prefix   string        // see redlock.WithPrefix
	Instance string        // see redlock.WithInstance
	MaxHold  time.Duration // of locks without an option WithMaxHold of their own; 0 for none
	// Logger logs to the log of redlock.WithLogger. A call of it blocks nobody, even if that log is slow, or blocks.
	Logger *slog.Logger
	// Keyspace identifies the place of the Locker's keys: its prefix and its masters. Lockers of one program with the same Keyspace see the same
	// locks. A master in memory belongs to one Locker alone, whatever its name.
	Keyspace string
}

var (
	// Of returns what a *redlock.Locker knows about itself. The Locker must have been made by redlock.New or Open.
	Of func(locker any) Locker
	// CheckTTL returns the error that calls of a *redlock.Locker would return for this TTL of a lock, or nil.
	CheckTTL func(locker any, ttl time.Duration) error
	// CheckOptions returns the error that redlock.New would return for these options, a []redlock.Option, or nil.
	CheckOptions func(options any) error
	// WithoutWarnings is a redlock.Option. It keeps New from logging warnings, for a program that has checked the same options with another Locker,
	// whose log has the warnings.
	WithoutWarnings any
	// Overlap reports whether each majority of one set of masters, a []redlock.Master, shares a server with each majority of the other set. Then two
	// Lockers on these sets, with the same prefix, exclude each other. Masters in memory count as different ones.
	Overlap func(ones, others any) bool
	// DefaultMaxSkew returns the max skew of a Locker with this max TTL, if no option sets it.
	DefaultMaxSkew func(maxTTL time.Duration) time.Duration
	// DefaultRestartGuard returns the restart guard of a Locker with these limits, if no option sets it. It is also the shortest one that is allowed.
	DefaultRestartGuard func(maxTTL, maxSkew time.Duration) time.Duration
)

// OptionError is the error of a redlock.Option whose value breaks a limit. A program that has other names for the options can use its parts.
type OptionError struct {
	Option string // the option's name in words, such as "max ttl"
	Value  string // the value that was given
	Limit  string // the limit that the value must keep
}

func (e *OptionError) Error() string { return "redlock: " + e.Named(e.Option) }

// Named returns the text of the error with a different name for the option.
func (e *OptionError) Named(option string) string { return option + " " + e.Value + ": " + e.Limit }
