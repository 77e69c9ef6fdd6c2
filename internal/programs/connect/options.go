package connect

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Options are the options of a locker that users set. Options that users didn't set have their defaults.
type Options struct {
	Timeout  time.Duration
	Prefix   string
	MaxTTL   time.Duration
	Guard    time.Duration // 0: off
	MaxSkew  time.Duration // 0: off
	Instance string        // empty: the default
}

// Given has the options of a locker as users write them. The zero value has the defaults.
type Given struct {
	Timeout      time.Duration
	Prefix       string
	MaxTTL       time.Duration
	RestartGuard string // a duration, "off", or "" for the default
	MaxSkew      string // the same
	Instance     string
}

// Options returns the options with defaults filled in, or the first error in them. An error begins with the name that the user has for the option.
func (g *Given) Options(name func(option string) string) (o Options, err error) {
	o = Options{
		Timeout:  cmp.Or(g.Timeout, redlock.DefaultTimeout),
		Prefix:   cmp.Or(g.Prefix, redlock.DefaultPrefix),
		MaxTTL:   cmp.Or(g.MaxTTL, redlock.DefaultMaxTTL),
		Instance: g.Instance,
	}
	if o.MaxSkew, err = durationOrOff(name("max skew"), g.MaxSkew, inside.DefaultMaxSkew(o.MaxTTL)); err != nil {
		return o, err
	}
	if o.Guard, err = durationOrOff(name("restart guard"), g.RestartGuard, inside.DefaultRestartGuard(o.MaxTTL, o.MaxSkew)); err != nil {
		return o, err
	}
	return o, Named(inside.CheckOptions(o.List()), name)
}

// durationOrOff reads a setting that may be off, and returns 0 for off. It doesn't check the duration, because package redlock does.
func durationOrOff(name, text string, standard time.Duration) (time.Duration, error) {
	switch text {
	case "":
		return standard, nil
	case "off":
		return 0, nil
	}
	d, err := rule.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s %q: want a duration such as %v, or off", name, text, standard)
	}
	return time.Duration(d), nil
}

// TTL is the ttl of locks that set none: the default, within the limits of the other options.
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
	if limit := (*inside.OptionError)(nil); errors.As(err, &limit) {
		return errors.New(limit.Named(name(limit.Option)))
	}
	return err
}
