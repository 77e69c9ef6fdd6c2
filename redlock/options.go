package redlock

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// The defaults of the options.
const (
	DefaultTTL     = 10 * time.Second
	DefaultMaxTTL  = 30 * time.Second
	DefaultTimeout = 50 * time.Millisecond
	DefaultPrefix  = "redlock"
	DefaultMaxHold = 5 * time.Minute

	DefaultMaxWaiters = 1000
)

// Option is a setting of a Locker, for New.
type Option interface{ applyTo(*options) }

// LockOption is a setting of one lock. Given to New it is the default of all locks; given to Lock,
// TryLock or Do it holds for that lock.
type LockOption interface {
	Option
	applyToLock(*lockOptions)
}

type options struct {
	lockOptions
	maxTTL   time.Duration
	guard    time.Duration
	timeout  time.Duration
	prefix   string
	logger   *slog.Logger
	observer Observer
}

type lockOptions struct {
	ttl        time.Duration
	maxHold    time.Duration
	maxWaiters int
}

type option func(*options)

func (f option) applyTo(o *options) { f(o) }

type lockOption func(*lockOptions)

func (f lockOption) applyTo(o *options)         { f(&o.lockOptions) }
func (f lockOption) applyToLock(o *lockOptions) { f(o) }

// WithTTL sets how long a lease lasts on the masters. It is renewed while the lock is held, and
// bounds the time for which a key stays locked after its holder has died. At least twice the
// timeout, at most the max TTL.
// Default: 10 s.
func WithTTL(ttl time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.ttl = ttl })
}

// WithMaxHold bounds how long a lock is held: then it is lost, although its lease could be renewed.
// It frees the key of a holder that is stuck. Default: 5 min.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.maxHold = d })
}

// WithMaxWaiters bounds how many calls of Lock wait for a key in this process: further ones fail at
// once, with an error that matches ErrTooManyWaiters and ErrHeld. At least 1. Default: 1000.
func WithMaxWaiters(n int) LockOption {
	return lockOption(func(o *lockOptions) { o.maxWaiters = n })
}

// WithMaxTTL sets the longest TTL that any lock may ask for. It must be the same in all processes
// that share the masters. Default: 30 s.
func WithMaxTTL(ttl time.Duration) Option {
	return option(func(o *options) { o.maxTTL = ttl })
}

// WithRestartGuard sets for how long a server that has just started has no vote: it may have
// forgotten locks that it granted before, and would grant them twice. At least the max TTL and a
// second; 0 is off, for servers that forget nothing (appendfsync always with
// no-appendfsync-on-rewrite no), and for development. Default: the max TTL and a second.
//
// The delayed restart is that of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/,
// "Performance, crash recovery and fsync", done by the client.
func WithRestartGuard(d time.Duration) Option {
	return option(func(o *options) { o.guard = d })
}

// WithTimeout sets how long a master may take to answer before it counts as failed. For a master
// that answers, but always slower than this, the Locker adapts it: up to four times the value.
// Default: 50 ms.
func WithTimeout(d time.Duration) Option {
	return option(func(o *options) { o.timeout = d })
}

// WithPrefix sets what the keys on the masters start with: "<prefix>:{<key>}". It must be the same
// in all processes that share locks, and holds no brace. Default: "redlock".
func WithPrefix(prefix string) Option {
	return option(func(o *options) { o.prefix = prefix })
}

// WithLogger sets where the Locker tells of masters that fail, return or may not vote. Keys and
// credentials are never logged. Default: no log.
func WithLogger(logger *slog.Logger) Option {
	return option(func(o *options) { o.logger = logger })
}

// WithObserver sets who is told of what happens to masters and leases. Default: nobody.
func WithObserver(observer Observer) Option {
	return option(func(o *options) { o.observer = observer })
}

// Observer is told what happens. Its methods are called from the goroutines that do the work: they
// must not block.
type Observer interface {
	// Acquired tells that a lock was had, and how.
	Acquired(Wait)
	// LeaseLost tells that a lock was lost before Unlock: ErrLost, or one that wraps it.
	LeaseLost(err error)
	// MasterDown tells that a master has no vote any more, and why: it doesn't answer, has just
	// restarted (ErrRestarted), its clock jumped, it is a replica, ….
	MasterDown(master string, err error)
	// MasterUp tells that a master that was down votes again.
	MasterUp(master string)
}

type nobody struct{}

func (nobody) Acquired(Wait)            {}
func (nobody) LeaseLost(error)          {}
func (nobody) MasterDown(string, error) {}
func (nobody) MasterUp(string)          {}

func newOptions(opts []Option) (options, error) {
	o := options{
		lockOptions: lockOptions{ttl: DefaultTTL, maxHold: DefaultMaxHold, maxWaiters: DefaultMaxWaiters},
		maxTTL:      DefaultMaxTTL,
		guard:       -1,
		observer:    nobody{},
		timeout:     DefaultTimeout,
		prefix:      DefaultPrefix,
		logger:      slog.New(slog.DiscardHandler),
	}
	for _, opt := range opts {
		opt.applyTo(&o)
	}
	least := o.maxTTL + time.Second // a server reports its uptime in seconds, up to one too high
	if o.guard == -1 {
		o.guard = least
	}
	switch {
	case o.guard != 0 && o.guard < least:
		return o, fmt.Errorf("redlock: restart guard %v: must be at least %v, the max ttl and a second, or 0 for off", o.guard, least)
	case o.observer == nil:
		return o, fmt.Errorf("redlock: observer is nil")
	case o.timeout <= 0:
		return o, fmt.Errorf("redlock: timeout %v: must be above 0", o.timeout)
	case o.prefix == "" || strings.ContainsAny(o.prefix, "{}"):
		return o, fmt.Errorf("redlock: prefix %q: must not be empty or hold a brace", o.prefix)
	case o.logger == nil:
		return o, fmt.Errorf("redlock: logger is nil")
	}
	return o, o.check(o.lockOptions)
}

// check says whether a lock with these settings can be asked for.
func (o *options) check(lock lockOptions) error {
	switch {
	case lock.ttl > o.maxTTL:
		return fmt.Errorf("redlock: ttl %v is above the max ttl %v", lock.ttl, o.maxTTL)
	case lock.ttl < 2*o.timeout:
		return fmt.Errorf("redlock: ttl %v: must be at least %v, twice the timeout of a master", lock.ttl, 2*o.timeout)
	case lock.maxHold <= 0:
		return fmt.Errorf("redlock: max hold %v: must be above 0", lock.maxHold)
	case lock.maxWaiters < 1:
		return fmt.Errorf("redlock: max waiters %d: must be at least 1", lock.maxWaiters)
	case lock.ttl < minTTL:
		return fmt.Errorf("redlock: ttl %v: must be at least %v", lock.ttl, minTTL)
	}
	return nil
}

// minTTL keeps the drift allowance, and Redis's resolution of 1 ms, small beside any TTL.
const minTTL = 20 * time.Millisecond

// drift is what a lease may last shorter on a master's clock than on ours: 1 % of the TTL for
// clocks that run at different speeds, and 2 ms for Redis's expiry in whole milliseconds
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, "The Redlock algorithm").
func drift(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }
