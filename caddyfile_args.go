package caddyredlock

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// block reads a block of subdirectives, each of which is known and there at most once.
func block(d *caddyfile.Dispenser, known map[string]func() error) error {
	seen := make(map[string]int)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		read, ok := known[name]
		if !ok {
			return d.Errf("unknown subdirective %q; there are: %s", name, names(known))
		}
		if line, ok := seen[name]; ok {
			return d.Errf("%s is there already, in line %d", name, line)
		}
		seen[name] = d.Line()
		if err := read(); err != nil {
			return err
		}
		if d.NextBlock(d.Nesting()) {
			return d.Errf("%s has no block", name)
		}
	}
	return nil
}

func someArgs(d *caddyfile.Dispenser, into *[]string) error {
	name := d.Val()
	if len(*into) > 0 {
		return d.Errf("%s is given on the first line already", name)
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

func durationArg(d *caddyfile.Dispenser, into *caddy.Duration) error {
	name, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	duration, err := caddy.ParseDuration(text)
	if err != nil || duration <= 0 {
		return d.Errf("%s %q: want a duration above 0 such as 500ms, 2s or 1m", name, text)
	}
	*into = caddy.Duration(duration)
	return nil
}

// waitArg reads a duration; 0 is to be told from one that isn't set.
func waitArg(d *caddyfile.Dispenser, into *caddy.Duration) error {
	next := *d
	if next.NextArg() && next.Val() == "0" && !next.NextArg() {
		*into = -1
		d.NextArg()
		return nil
	}
	return durationArg(d, into)
}

func sizeArg(d *caddyfile.Dispenser, into *int64) error {
	name, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	size, err := humanize.ParseBytes(text)
	if err != nil || size == 0 || size > math.MaxInt32 {
		return d.Errf("%s %q: want a size from 1B to 2GiB, such as 64KiB or 1MiB", name, text)
	}
	*into = int64(size)
	return nil
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

func names(known map[string]func() error) string {
	return strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}
