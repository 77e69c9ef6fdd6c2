package caddyredlock

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// source has the place of each setting of a block in the Caddyfile, as file:line by name; "redlock" is the block itself.
type source map[string]string

// at adds the place of a setting to an error that begins with the name of the setting, as all errors do that are only found after
// the whole block has been read.
func (s source) at(err error) error {
	name, _, _ := strings.Cut(err.Error(), " ")
	place := cmp.Or(s[strings.TrimSuffix(name, ":")], s["redlock"])
	if place == "" { // a configuration in JSON, for which Caddy names the routes
		return err
	}
	return fmt.Errorf("%w, at %s", err, place)
}

// only keeps the places of these settings and of the block.
func (s source) only(names ...string) source {
	maps.DeleteFunc(s, func(name, _ string) bool { return name != "redlock" && !slices.Contains(names, name) })
	return s
}

// block reads a block of subdirectives. Each must be one of the known ones, and may occur once.
func block(d *caddyfile.Dispenser, known map[string]func() error) (source, error) {
	here := func() string { return fmt.Sprintf("%s:%d", d.File(), d.Line()) }
	places := source{"redlock": here(), "key": here()}
	seen := make(map[string]int)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		read, ok := known[name]
		if !ok {
			return nil, d.Errf("unknown subdirective %q; want one of: %s", name, names(known))
		}
		if line, ok := seen[name]; ok {
			return nil, d.Errf("duplicate %s: already set on line %d", name, line)
		}
		seen[name], places[name] = d.Line(), here()
		if err := read(); err != nil {
			return nil, err
		}
		if d.NextBlock(d.Nesting()) {
			return nil, d.Errf("%s takes no block", name)
		}
	}
	return places, nil
}

func someArgs(d *caddyfile.Dispenser, into *[]string) error {
	name := d.Val()
	if len(*into) > 0 {
		return d.Errf("%s: already given on the first line", name)
	}
	*into = d.RemainingArgs()
	if len(*into) == 0 {
		return d.Errf("%s: want at least one value", name)
	}
	return nil
}

func oneArg(d *caddyfile.Dispenser, into *string) error {
	name := d.Val()
	if !d.AllArgs(into) {
		return d.Errf("%s: want exactly one value", name)
	}
	return nil
}

func noArgs(d *caddyfile.Dispenser) error {
	name := d.Val()
	if d.NextArg() {
		return d.Errf("%s: takes no value", name)
	}
	return nil
}

// switchArg reads on or off; nothing means on.
func switchArg(d *caddyfile.Dispenser, into **bool) error {
	name, text := d.Val(), "on"
	if d.NextArg() {
		text = d.Val()
	}
	if text != "on" && text != "off" || d.NextArg() {
		return d.Errf("%s: want on, off or nothing, which means on", name)
	}
	on := text == "on"
	*into = &on
	return nil
}

func durationArg(d *caddyfile.Dispenser, into *time.Duration) error {
	name, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	duration, err := parseDuration(d, name, text)
	*into = duration
	return err
}

func parseDuration(d *caddyfile.Dispenser, name, text string) (time.Duration, error) {
	duration, err := caddy.ParseDuration(text)
	if err != nil || duration <= 0 {
		return 0, d.Errf("%s %q: want a duration above 0 such as 500ms, 2s or 1m", name, text)
	}
	return duration, nil
}

// waitArg reads a duration. It stores 0 as -1, to distinguish it from a wait that is not set.
func waitArg(d *caddyfile.Dispenser, into *time.Duration) error {
	next := *d
	if next.NextArg() && next.Val() == "0" && !next.NextArg() {
		*into = -1
		d.NextArg()
		return nil
	}
	return durationArg(d, into)
}

// rememberArgs reads a duration and perhaps a size. It stores off as -1, to distinguish it from a duration that is not set.
func rememberArgs(d *caddyfile.Dispenser, into *time.Duration, size *int) error {
	next := *d
	if next.NextArg() && next.Val() == "off" && !next.NextArg() {
		*into = -1
		d.NextArg()
		return nil
	}
	name, args := d.Val(), d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 {
		return d.Errf("%s: want a duration and perhaps the size of the largest body, such as 24h 64KiB, or off", name)
	}
	duration, err := parseDuration(d, name, args[0])
	if err != nil {
		return err
	}
	*into = duration
	if len(args) == 1 {
		return nil
	}
	bytes, err := parseSize(d, name, args[1])
	*size = int(bytes)
	return err
}

func sizeArg(d *caddyfile.Dispenser, into *int64) error {
	name, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	size, err := parseSize(d, name, text)
	*into = size
	return err
}

func parseSize(d *caddyfile.Dispenser, name, text string) (int64, error) {
	size, err := humanize.ParseBytes(text)
	if err != nil || size == 0 || size > math.MaxInt32 {
		return 0, d.Errf("%s %q: want a size from 1B to 2GiB, such as 64KiB or 1MiB", name, text)
	}
	return int64(size), nil
}

func statusArg(d *caddyfile.Dispenser, into *int) error {
	return intArg(d, into, 400, 599, "a status from 400 to 599")
}

func numberArg(d *caddyfile.Dispenser, into *int) error {
	return intArg(d, into, 1, math.MaxInt, "a number from 1")
}

func intArg(d *caddyfile.Dispenser, into *int, least, most int, want string) error {
	name, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return d.Errf("%s %q: want %s", name, text, want)
	}
	*into = n
	return nil
}

func verifyArgs(d *caddyfile.Dispenser, into **middleware.Verify) error {
	args := d.RemainingArgs()
	if len(args) < 2 {
		return d.Err("verify: want a scheme and at least one secret, such as stripe {env.STRIPE_SECRET}")
	}
	*into = &middleware.Verify{Scheme: args[0], Secrets: args[1:]}
	return nil
}

func names(known map[string]func() error) string {
	return strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}
