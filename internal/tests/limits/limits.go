// Package limits has values that every door to the lock must refuse. The doors are the library's options, flags, variables, the Caddyfile, JSON and
// the agent. Only tests use it.
package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Beyond has values beyond the limit of each option, with the default of all others. Durations are written as package time writes them.
var Beyond = map[string][]string{
	"max ttl":       {"2562047h47m16.854775807s", "8784h0m0.000000001s", "19.999999ms"},
	"max skew":      {"2562047h47m16.854775807s", "10s"},
	"restart guard": {"2562047h47m16.854775807s", "10.999999999s"},
	"timeout":       {"2562047h47m16.854775807s", "5.000000001s"},
	"ttl":           {"2562047h47m16.854775807s", "10.000000001s", "99.999999ms"},
	"wait":          {"-1s"},
	"masters wait":  {"-1s"},
	"max hold":      {"-1s"},
	"once per":      {"-1s", "999.999999ms"},
	"concurrency":   {"4294967297", "65537", "257", "0", "-1"},
	"max waiters":   {"-1"},
	"prefix":        {strings.Repeat("p", 201), "a{b"},
	"instance":      {strings.Repeat("i", 65), "a b"},
}

// longest is the longest value that errors show whole.
const longest = 64

// Test requires that a door refuses each value of these options, with the value, the limit, and the name that it has for the option. set gives the
// option the value.
func Test(t *testing.T, name func(option string) string, set func(option, value string) error, options ...string) {
	t.Helper()
	for _, option := range options {
		for _, value := range Beyond[option] {
			err := set(option, value)
			if err == nil {
				t.Errorf("%s %s is accepted", name(option), value)
				continue
			}
			text := err.Error()
			if len(value) > longest {
				value = fmt.Sprintf("of %d bytes", len(value))
			}
			if !strings.Contains(text, name(option)+" "+value) && !strings.Contains(text, name(option)+` "`+value) || !strings.Contains(text, "must ") && !strings.Contains(text, "want ") {
				t.Errorf("%s %s: the error is %q, and should have both, and what must be", name(option), value, text)
			}
		}
	}
}

// TestKeys requires that a door refuses a key that is too long, and too many keys, with both numbers. ask asks for the lock on them.
func TestKeys(t *testing.T, ask func(keys ...string) error) {
	t.Helper()
	var many []string
	for i := range redlock.MaxKeys + 1 {
		many = append(many, fmt.Sprint(i))
	}
	for _, c := range []struct {
		keys       []string
		has, limit int
	}{{[]string{"a", strings.Repeat("k", redlock.MaxKeyLength+1)}, redlock.MaxKeyLength + 1, redlock.MaxKeyLength}, {many, len(many), redlock.MaxKeys}} {
		err := ask(c.keys...)
		if text := fmt.Sprint(err); err == nil || !strings.Contains(text, "key") || !strings.Contains(text, fmt.Sprint(c.has)) || !strings.Contains(text, fmt.Sprint(c.limit)) {
			t.Errorf("%d keys: the error is %q, and should have %d and %d", len(c.keys), text, c.has, c.limit)
		}
	}
}

// With returns a name for options: the words with something before and between them.
func With(before, between string) func(option string) string {
	return func(option string) string { return before + strings.ReplaceAll(option, " ", between) }
}
