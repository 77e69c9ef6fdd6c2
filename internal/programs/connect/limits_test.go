package connect

import (
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/limits"
)

// TestLimits: flags and variables are named as they were written.
func TestLimits(t *testing.T) {
	options := []string{"max ttl", "max skew", "restart guard", "timeout", "prefix", "instance"}
	limits.Test(t, limits.With("--", "-"), func(option, value string) error {
		_, _, err := parse(t, nil, "--masters", "redis://a", "--"+strings.ReplaceAll(option, " ", "-"), value).Resolve()
		return err
	}, options...)
	variable := func(option string) string { return Variable(strings.ReplaceAll(option, " ", "-")) }
	limits.Test(t, variable, func(option, value string) error {
		_, _, err := parse(t, map[string]string{variable(option): value}, "--masters", "redis://a").Resolve()
		return err
	}, options...)
}
