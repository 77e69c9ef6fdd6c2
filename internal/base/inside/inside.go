// Package inside gives this module's own packages and programs what package redlock exports to nobody. Package redlock sets the variables. Where a
// type is redlock's, which this package can't import, it is any, and the comment names the type.
package inside

import (
	"context"
	"crypto/tls"
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
	// locks. With masters in memory, each Locker has a Keyspace of its own.
	Keyspace string
}

var (
	// Of returns what a *redlock.Locker knows about itself. The Locker must have been made by redlock.New or Open.
	Of func(locker any) Locker
	// Dial returns a master for each URL, as a []redlock.Master: see redlock.Open. It doesn't connect; redlock.New does. Each new connection asks for
	// the access, which may change while a Locker runs; but whether it has TLS settings must not change.
	Dial func(access func() Access, urls ...string) (masters any, err error)
	// NewMemoryMaster returns a redlock.Master in this process's own memory. Several Lockers on one such master exclude each other, as processes on one
	// server do, and the end of one leaves the others running. Two masters of one name are different masters.
	NewMemoryMaster func(name string) any
	// CheckTTL returns the error that calls of a *redlock.Locker would return for this TTL of a lock, or nil.
	CheckTTL func(locker any, ttl time.Duration) error
	// CheckOptions returns the error that redlock.New would return for these options, a []redlock.Option, or nil.
	CheckOptions func(options any) error
	// WithoutWarnings is a redlock.Option. It keeps New from logging warnings, for a program that has checked the same options with another Locker,
	// whose log has the warnings.
	WithoutWarnings any
	// WithRequest returns a redlock.LockOption. It says which request a lock is for. Function inspect.Keys shows the request to operators. The rest of
	// package inspect also shows it in other processes, once the call has held the lock, or waited, for some seconds. It appears in no log. Don't
	// change the request after the call.
	WithRequest func(*Request) any
	// Overlap reports whether each majority of one set of masters, a []redlock.Master, shares a server with each majority of the other set. Then two
	// Lockers on these sets, with the same prefix, exclude each other. Masters in memory count as different ones.
	Overlap func(ones, others any) bool
	// Examine looks at the server of a redlock.Master for the command redlock doctor, and waits up to patience for each reply. It takes no lock. It
	// writes one key on the server, with a name that nobody else uses, and removes it. In a Redis Cluster it does that on each node.
	Examine func(ctx context.Context, master any, prefix string, patience time.Duration) *Examination
	// AcquisitionOf returns how a *redlock.Lock was obtained.
	AcquisitionOf func(lock any) Acquisition
	// EndOf returns how a *redlock.Lock has ended, or "" while it is held. While Unlock waits for the masters, it is EndUnconfirmed.
	EndOf func(lock any) End
	// DefaultMaxSkew returns the max skew of a Locker with this max TTL, if no option sets it.
	DefaultMaxSkew func(maxTTL time.Duration) time.Duration
	// DefaultRestartGuard returns the restart guard of a Locker with these limits, if no option sets it. It is also the shortest one that is allowed.
	DefaultRestartGuard func(maxTTL, maxSkew time.Duration) time.Duration
)

// Request describes the request for which a lock is taken. Its fields are those of inspect.Request. Their names in JSON are those in a beat: see package
// heartbeat in redlock/internal.
type Request struct {
	Method   string `json:"m,omitempty"`
	Path     string `json:"p,omitempty"`
	ID       string `json:"i,omitempty"`
	TraceID  string `json:"t,omitempty"`
	Client   string `json:"c,omitempty"`
	Delivery string `json:"d,omitempty"`
}

// Access is how processes get access to masters.
type Access struct {
	Username, Password string      // for masters whose URLs have neither
	TLS                *tls.Config // as for redlock.WithTLS
}

// Acquisition describes how a lock was obtained.
type Acquisition struct {
	Waited   time.Duration // from the call until the lock was taken
	Position int           // how many calls for the key in this process were ahead of this one when it came, including the holders
	Via      string        // how the call got the lock: see ViaFree
	Granted  int           // how many masters had granted the lock when it was taken; the others may follow
}

// How a call gets its lock, as redlock.Observer says it.
const (
	ViaFree   = "free"   // the key was free at the first attempt
	ViaPassed = "passed" // the previous holder, in the same process, handed the lock on
	ViaWoken  = "woken"  // a master published that the key was free
	ViaPolled = "polled" // the call found the key free by asking again: the holder had died, or a wake-up was lost
)

// End says how the hold of a lock has ended. The cause of the lock's contexts, the error of Unlock, the log, the Observer, and packages middleware
// and agent all follow from it. It is empty while the lock is held.
type End string

// The values of End.
const (
	EndReleased    End = "released"    // by Unlock, and the lock was held until then
	EndUnconfirmed End = "unconfirmed" // by Unlock, but too few masters have confirmed so far that the lock was held until then
	EndGone        End = "gone"        // by Unlock, but the masters' replies to the release say that they had lost the lock before
	EndExpired     End = "expired"     // the lock's validity was over, because no quorum had renewed it
	EndTaken       End = "taken"       // the masters refused to renew the lock: others have its key on so many masters that no quorum is left
	EndForced      End = "forced"      // by inspect.Force
	EndMaxHold     End = "max_hold"    // by redlock.WithMaxHold
	EndClosed      End = "closed"      // by Locker.Close
)

// Lost reports whether another holder may have had the lock before its own holder was done: neither Unlock nor Close has ended it, or Unlock has
// found it lost.
func (e End) Lost() bool {
	switch e {
	case EndGone, EndExpired, EndTaken, EndForced, EndMaxHold:
		return true
	}
	return false
}

// OptionError is the error of a redlock.Option whose value breaks a limit. A program that has other names for the options can use its parts.
type OptionError struct {
	Option string // the option's name in words, such as "max ttl"
	Value  string // the value that was given
	Limit  string // the limit that the value must keep
}

func (e *OptionError) Error() string { return "redlock: " + e.Named(e.Option) }

// Named returns the text of the error with a different name for the option.
func (e *OptionError) Named(option string) string { return option + " " + e.Value + ": " + e.Limit }
