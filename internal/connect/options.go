package connect

import (
	"errors"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Options are those of a locker that users set, with the defaults in the place of what they didn't set.
type Options struct {
	Timeout  time.Duration
	Prefix   string
	MaxTTL   time.Duration
	Guard    time.Duration // 0: off
	MaxSkew  time.Duration // 0: off
	Instance string        // empty: the default
}

// DefaultGuard is the restart guard of package redlock for these options.
func DefaultGuard(maxTTL, maxSkew time.Duration) time.Duration {
	return max(maxTTL, maxSkew+200*time.Millisecond) + time.Second
}

// TTL is that of locks that set none: the default, within the limits that the other options leave.
func (o *Options) TTL() time.Duration { return min(max(redlock.DefaultTTL, 2*o.Timeout), o.MaxTTL) }

// List returns the options as package redlock takes them.
func (o *Options) List() []redlock.Option {
	all := []redlock.Option{
		redlock.WithTTL(o.TTL()),
		redlock.WithMaxTTL(o.MaxTTL),
		redlock.WithRestartGuard(o.Guard),
		redlock.WithMaxSkew(o.MaxSkew),
		redlock.WithTimeout(o.Timeout),
		redlock.WithPrefix(o.Prefix),
	}
	if o.Instance != "" {
		all = append(all, redlock.WithInstance(o.Instance))
	}
	return all
}

// Named returns the error of an option by the name that a program has for it.
func Named(err error, name func(option string) string) error {
	if limit := (*redlock.OptionError)(nil); errors.As(err, &limit) {
		return errors.New(limit.Named(name(limit.Option)))
	}
	return err
}
