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
	maxTTL  time.Duration
	timeout time.Duration
	prefix  string
	logger  *slog.Logger
}

type lockOptions struct {
	ttl time.Duration
}

type option func(*options)

func (f option) applyTo(o *options) { f(o) }

type lockOption func(*lockOptions)

func (f lockOption) applyTo(o *options)         { f(&o.lockOptions) }
func (f lockOption) applyToLock(o *lockOptions) { f(o) }

// WithTTL sets how long a lease lasts on the masters. It bounds the time for which a key stays
// locked after its holder has died. At least twice the timeout, at most the max TTL.
// Default: 10 s.
func WithTTL(ttl time.Duration) LockOption {
	return lockOption(func(o *lockOptions) { o.ttl = ttl })
}

// WithMaxTTL sets the longest TTL that any lock may ask for. It must be the same in all processes
// that share the masters. Default: 30 s.
func WithMaxTTL(ttl time.Duration) Option {
	return option(func(o *options) { o.maxTTL = ttl })
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

func newOptions(opts []Option) (options, error) {
	o := options{
		lockOptions: lockOptions{ttl: DefaultTTL},
		maxTTL:      DefaultMaxTTL,
		timeout:     DefaultTimeout,
		prefix:      DefaultPrefix,
		logger:      slog.New(slog.DiscardHandler),
	}
	for _, opt := range opts {
		opt.applyTo(&o)
	}
	switch {
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
