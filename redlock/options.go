package redlock

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/heartbeat"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// MaxConcurrency is the largest number for WithConcurrency.
const MaxConcurrency = protocol.MaxSlots

// MaxKeyLength is the largest number of bytes of a key; a longer key is refused with ErrKeyTooLong. The keys of one call of LockAll may have 64
// times as many together.
const MaxKeyLength = 1 << 10

// The defaults of the options.
const (
	DefaultTTL     = 10 * time.Second
	DefaultMaxTTL  = DefaultTTL
	DefaultTimeout = 50 * time.Millisecond
	DefaultPrefix  = "redlock"

	DefaultMaxWaiters  = 1000
	DefaultMastersWait = time.Minute
)

// Option is a setting of a Locker, for Open and New.
type Option interface{ applyTo(*options) }

// LockOption is a setting of one lock. Given to Lock, LockAll, TryLock, Do, TryDo, Once or OncePer, it applies to that lock. Given to
// Open or New, it is the default for all locks.
type LockOption interface {
	Option
	applyToLock(lockOptions) lockOptions // by value, so that a call allocates no memory for its options
}

type options struct {
	lockOptions
	maxTTL   time.Duration
	guard    time.Duration
	maxSkew  time.Duration
	timeout  time.Duration
	fastFrom time.Duration // see vote.Masters
	solo     time.Duration // see link.Settings
	prefix   string
	instance string
	logger   *slog.Logger
	warned   bool // see inside.WithoutWarnings
	observer Observer
	tls      *tls.Config
}

type lockOptions struct {
	ttl        time.Duration
	wait       time.Duration   // the longest wait for the lock; untilDone if only the context of the call ends it
	masters    time.Duration   // how long the call waits for a quorum of masters
	maxHold    time.Duration   // 0: no bound
	label      string          // shown by inspect.Keys
	request    *inside.Request // shown by inspect.Keys, too
	maxWaiters int
	slots      int // how many may hold the key at once
	recall     bool
	spellings  bool          // the call has more than one text as its keys, perhaps with one lock: there is no one result
	slotsOf    *slotsOf      // the keys with their own number of holders: see WithConcurrency
	period     time.Duration // the period of WithOncePer; 0 for none
}

// untilDone is a wait that only the context of the call ends.
const untilDone = time.Duration(math.MaxInt64)

type option func(*options)

func (f option) applyTo(o *options) { f(o) }

type lockOption func(lockOptions) lockOptions

func (f lockOption) applyTo(o *options) { o.lockOptions = f(o.lockOptions) }

func (f lockOption) applyToLock(o lockOptions) lockOptions { return f(o) }

// WithMaxTTL sets the longest TTL that any lock may have. It must be the same in all processes
// that share the masters. 20 ms to 366 days. Default: 10 s, as the TTL.
func WithMaxTTL(ttl time.Duration) Option {
	return option(func(o *options) { o.maxTTL = ttl })
}

// WithRestartGuard sets how long a server that has just started has no vote. Such a server may have forgotten locks that it granted before, and would
// grant them twice. The guard is at least the max TTL plus 1 s, and at least the max skew plus 1.2 s. 0 turns it off: for development, and for
// servers that forget nothing (appendfsync always with no-appendfsync-on-rewrite no). Default: the shortest guard that is allowed, 11 s with the
// default max TTL.
//
// The guard is the delayed restart of https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, "Performance, crash recovery and
// fsync", done by the client.
func WithRestartGuard(d time.Duration) Option {
	return option(func(o *options) { o.guard = d })
}

// WithMaxSkew sets how much the clocks of the masters may differ. A master whose clock is further than half of the max skew from the median, as this
// process sees the clocks, has no vote until its clock is right again. Otherwise fencing tokens could decrease when servers restart. Processes may
// have different values. 0 turns the check off: then the clocks must differ by less than the restart guard. The value must be less than the max TTL.
// Default: 2 s, or half of the max TTL if that is less.
func WithMaxSkew(d time.Duration) Option {
	return option(func(o *options) { o.maxSkew = d })
}

// WithTimeout sets how long a master may take to answer before it counts as failed. If a master always takes longer, but answers, the Locker adapts
// the timeout of that master, up to four times this value. A master in memory has 5 s at least. The timeout is at most half of the max TTL. Default:
// 50 ms.
func WithTimeout(d time.Duration) Option {
	return option(func(o *options) { o.timeout = d })
}

// WithPrefix sets the beginning of all keys on the masters: a lock's key is "<prefix>:{<key>}". It must be the same in all processes that share
// locks. It must not be empty, contain a brace, or have more than 200 bytes. Default: "redlock".
func WithPrefix(prefix string) Option {
	return option(func(o *options) { o.prefix = prefix })
}

// WithInstance sets the name by which package inspect, in any process, shows this process as a holder or waiter of a key. It is 1 to 64 printable
// ASCII characters without spaces. Processes may have the same name. Default: the name of the host and the process ID, as in web1/4711.
func WithInstance(name string) Option {
	return option(func(o *options) { o.instance = name })
}

// WithTLS sets the TLS settings for the masters whose URLs ask for TLS, such as a private certificate authority or a client certificate. A master's
// certificate must be for the host in its URL, unless the settings have a ServerName. The same is true of all nodes of a Redis Cluster. The option is
// for Open alone. Default: the settings of crypto/tls, with the system's authorities.
func WithTLS(config *tls.Config) Option {
	return option(func(o *options) { o.tls = config.Clone() })
}

// WithLogger sets where the Locker logs lost leases, and masters that fail, recover or have no vote. It never logs keys or credentials. A log that is
// slow, or blocks, delays no lock: log lines wait in a queue, and are dropped if they become too many. Status.DroppedLines counts the dropped lines.
// Package middleware uses the same log, unless it is given another one. Default: slog.Default, with logger=redlock.
func WithLogger(logger *slog.Logger) Option {
	return option(func(o *options) { o.logger = logger })
}

// WithObserver sets an Observer, which is called when something happens to masters, leases and calls.
// Default: none.
func WithObserver(observer Observer) Option {
	return option(func(o *options) { o.observer = observer })
}

func newOptions(opts []Option) (options, error) {
	o := options{
		lockOptions: lockOptions{ttl: DefaultTTL, wait: untilDone, masters: DefaultMastersWait, maxWaiters: DefaultMaxWaiters, slots: 1},
		maxTTL:      DefaultMaxTTL,
		guard:       -1,
		maxSkew:     -1,
		timeout:     DefaultTimeout,
		fastFrom:    protocol.FenceTTL + protocol.FenceSlack,
		prefix:      DefaultPrefix,
		instance:    defaultInstance(),
		logger:      notices.Default(),
	}
	for i, opt := range opts {
		if opt == nil {
			return o, nilOption(i)
		}
		opt.applyTo(&o)
	}
	if o.maxSkew == -1 {
		o.maxSkew = defaultMaxSkew(o.maxTTL)
	}
	least := defaultRestartGuard(o.maxTTL, o.maxSkew)
	if o.guard == -1 {
		o.guard = least
	}
	switch {
	case o.maxTTL < minTTL || o.maxTTL > longest:
		return o, offLimits("max ttl", o.maxTTL, "must be %v to %v", minTTL, longest)
	case o.maxSkew < 0 || o.maxSkew >= o.maxTTL:
		return o, offLimits("max skew", o.maxSkew, "must be above 0 and less than the max ttl %v, or 0 for off", o.maxTTL)
	case o.guard != 0 && (o.guard < least || o.guard > 2*longest):
		return o, offLimits("restart guard", o.guard, "must be at least %v, which the max ttl and the max skew need, and at most %v, or 0 for off", least, 2*longest)
	case o.timeout <= 0 || o.timeout > o.maxTTL/2:
		return o, offLimits("timeout", o.timeout, "must be above 0, and at most %v, half of the max ttl", o.maxTTL/2)
	case len(o.prefix) > maxPrefix:
		return o, offLimits("prefix", fmt.Sprintf("of %d bytes", len(o.prefix)), "must have at most %d", maxPrefix)
	case o.prefix == "" || strings.ContainsAny(o.prefix, "{}"):
		return o, offLimits("prefix", fmt.Sprintf("%q", o.prefix), "must not be empty or contain a brace")
	case len(o.instance) > maxInstance:
		return o, offLimits("instance", fmt.Sprintf("of %d bytes", len(o.instance)), "must be 1 to %d printable ASCII characters without spaces", maxInstance)
	case o.instance == "" || strings.ContainsFunc(o.instance, unprintable):
		return o, offLimits("instance", fmt.Sprintf("%q", o.instance), "must be 1 to %d printable ASCII characters without spaces", maxInstance)
	case o.logger == nil:
		return o, errors.New("redlock: logger is nil")
	}
	return o, o.check(o.lockOptions)
}

// defaultMaxSkew is inside.DefaultMaxSkew: 2 s, or half of the max TTL if that is less.
func defaultMaxSkew(maxTTL time.Duration) time.Duration { return min(2*time.Second, maxTTL/2) }

// defaultRestartGuard is inside.DefaultRestartGuard.
func defaultRestartGuard(maxTTL, maxSkew time.Duration) time.Duration {
	return max(maxTTL, maxSkew+2*protocol.FenceSlack) + time.Second // a server reports its uptime in whole seconds, which may be up to 1 s too long
}

func offLimits(option string, value any, limit string, values ...any) error {
	return &inside.OptionError{Option: option, Value: fmt.Sprint(value), Limit: fmt.Sprintf(limit, values...)}
}

func nilOption(i int) error {
	return fmt.Errorf("redlock: option %d of the call is nil", i+1)
}

// longest is the largest max TTL. Sums of a few such times must fit into a time.Duration, and into the numbers in which Redis's Lua counts
// microseconds.
const longest = 366 * 24 * time.Hour

// memoryTimeout is the shortest timeout for masters in memory: if such a master is late, the whole process is late.
const memoryTimeout = 5 * time.Second

func (o options) link(m protocol.Master, watcher link.Watcher) link.Settings {
	timeout := o.timeout
	if m.Capabilities().Local {
		timeout = max(timeout, memoryTimeout)
	}
	return link.Settings{MaxTTL: o.maxTTL, Timeout: timeout, Prefix: o.prefix, Solo: o.solo, Logger: o.logger, Watcher: watcher}
}

func (o options) admission() admission.Settings {
	return admission.Settings{MaxTTL: o.maxTTL, Guard: o.guard, MaxSkew: o.maxSkew, Logger: o.logger, Young: heartbeat.Settled, Key: protocol.Processes(o.prefix)}
}

func (o *options) check(lock lockOptions) error {
	switch {
	case lock.ttl < minTTL:
		return offLimits("ttl", lock.ttl, "must be at least %v", minTTL)
	case lock.ttl > o.maxTTL:
		return offLimits("ttl", lock.ttl, "must be at most the max ttl %v", o.maxTTL)
	case lock.ttl < 2*o.timeout:
		return offLimits("ttl", lock.ttl, "must be at least %v, twice the timeout of a master", 2*o.timeout)
	case lock.wait < 0:
		return offLimits("wait", lock.wait, "must not be negative")
	case lock.masters < 0:
		return offLimits("masters wait", lock.masters, "must not be negative")
	case lock.maxHold < 0:
		return offLimits("max hold", lock.maxHold, "must not be negative; 0 is for none")
	case lock.period != 0 && lock.period < MinPeriod:
		return offLimits("once per", lock.period, "must be at least %v", MinPeriod)
	case lock.maxWaiters < 1:
		return offLimits("max waiters", lock.maxWaiters, "must be at least 1")
	case lock.slots < 1 || lock.slots > MaxConcurrency:
		return offLimits("concurrency", lock.slots, "must be 1 to %d", MaxConcurrency)
	case lock.slots > 1 && (lock.recall || lock.period > 0):
		return fmt.Errorf("%w: WithRecall, WithOncePer and Once need locks with one holder", ErrConcurrency)
	case len(lock.label) > MaxKeyLength:
		return offLimits("label", fmt.Sprintf("of %d bytes", len(lock.label)), "must have at most %d", MaxKeyLength)
	case lock.slotsOf != nil:
		lock.slots, lock.slotsOf = lock.slotsOf.n, lock.slotsOf.next
		return o.check(lock)
	}
	return nil
}

const maxPrefix = 200 // bytes

// minTTL is the shortest TTL. The drift allowance, and Redis's resolution of 1 ms, must be small compared with any TTL.
const minTTL = 20 * time.Millisecond

// WithTTL sets how long a lease lasts on the masters. It is renewed while the lock is held, so the TTL does not bound the work: it bounds how long a
// key stays locked after its holder has died. The TTL is at least twice the timeout, at least 20 ms, and at most the max TTL. Default: 10 s.
func WithTTL(ttl time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.ttl = ttl; return o })
}

// WithWait sets how long a call waits for the lock, at most. The time begins with the call, and is for all keys of LockAll together. The context of
// the call may end the wait earlier. With 0 the call doesn't wait, like TryLock. The time bounds neither the lock nor the work of Do. Default: the
// call waits until its context ends.
//
// An attempt that is under way when the time is over is completed, and may still get the lock. That takes at most a few of the masters' timeouts. So
// a call with a short wait gets the lock at least as often as TryLock.
//
// When the time is over, the error is the same as after the deadline of the context: a *HeldError or *QuorumError that also matches
// context.DeadlineExceeded.
func WithWait(d time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.wait = d; return o })
}

// WithMastersWait sets how long a call waits while too few masters have a vote for its key, because they refuse, hang or are full. The time counts
// from when this process noticed that, even if that was before the call. When it is over, the error is a *QuorumError that doesn't match the
// context's error. Each further call gets that error at once, until enough masters have a vote again. The setting never makes a wait longer. A call
// that waits for a lock of this process waits for that lock, and not for masters. With 0 no call waits for masters. Default: a minute, at most the
// wait; a rule of package middleware has a second.
func WithMastersWait(d time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.masters = d; return o })
}

// WithMaxHold bounds how long a lock is held. When the time is over, the lock is lost with ErrMaxHold, although its lease could be renewed. So the
// key of a holder that is stuck becomes free. 0 is for no bound. Default: 0, the lock is held until Unlock, for as long as its lease can be renewed.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.maxHold = d; return o })
}

// WithConcurrency sets how many holders a key may have at once, over all processes: 1 to MaxConcurrency (256). Each holder has one of n slots, which
// is a separate lock: see Lock.Slot and Lock.Fence. All waiting calls stand in one queue, and the first gets the slot that becomes free. All
// processes should have the same n for a key. If they differ, the largest n bounds the number of holders, and a process takes no slot beyond its own
// n. LockAll takes a slot of each of its keys. WithRecall, WithOncePer, Once and UnlockWith give ErrConcurrency for n above 1. Default: 1.
//
// With keys, n is for these keys alone, and takes precedence: so the keys of LockAll may have different numbers. Of the numbers for keys that share a
// lock, as they differ in the case of ASCII letters alone, the smallest counts.
func WithConcurrency(n int, keys ...string) LockOption {
	if len(keys) == 0 {
		return lockOption(func(o lockOptions) lockOptions { o.slots = n; return o })
	}
	return lockOption(func(o lockOptions) lockOptions {
		for _, key := range keys {
			o.slotsOf = &slotsOf{key, lockname.Of(key), n, o.slotsOf}
		}
		return o
	})
}

type slotsOf struct {
	key  string
	lock string // the name of the key's lock
	n    int
	next *slotsOf
}

// most returns how many may hold the lock on a key at once. The last option for a key counts.
func (o *lockOptions) most(key string) (n int) {
	n, name, last := o.slots, lockname.Of(key), ""
	for of := o.slotsOf; of != nil; of = of.next {
		switch {
		case of.lock != name:
		case last == "":
			n, last = of.n, of.key
		case of.key != last:
			n = min(n, of.n)
		}
	}
	return n
}

// WithMaxWaiters bounds how many calls wait for a key in this process. Further calls fail at once with ErrTooManyWaiters. The number is at least 1.
// Default: 1000.
func WithMaxWaiters(n int) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.maxWaiters = n; return o })
}

// WithLabel sets a text for the purpose of the lock. Function inspect.Keys shows it with the key. Package middleware sets the name of the rule. The
// text has at most MaxKeyLength bytes. Default: none.
func WithLabel(text string) LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.label = text; return o })
}

// WithRecall makes a call fail with a *DoneError if an earlier holder has left a result for the key with Lock.UnlockWith. Then the work need not be
// done again. The option costs no further command. But the call waits, within their timeout, for the replies of all masters that are not known to be
// away, because one master that remembers the result is enough. If the result can't be read, the error is ErrUnreadable. The option is for
// calls with one key. Default: remembered results are ignored.
func WithRecall() LockOption {
	return lockOption(func(o lockOptions) lockOptions { o.recall = true; return o })
}

const maxInstance = 64 // bytes of an instance name

func unprintable(c rune) bool { return c <= ' ' || c > '~' }

func defaultInstance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(c rune) rune {
		if unprintable(c) {
			return '-'
		}
		return c
	}, host)
	pid := fmt.Sprint("/", os.Getpid())
	return host[:min(len(host), maxInstance-len(pid))] + pid
}
