//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/limits"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestLimits: redlock run refuses what is beyond a limit before it looks for masters, and names the flag.
func TestLimits(t *testing.T) {
	limits.Test(t, limits.With("--", "-"), func(option, value string) error {
		flag := "--" + strings.ReplaceAll(option, " ", "-") + "=" + value
		return refusedToRun(t, flag, "k")
	}, "max ttl", "max skew", "restart guard", "timeout", "prefix", "instance", "ttl", "wait", "max hold", "once per", "concurrency")
	for _, env := range []string{"TTL", "WAIT", "MAX_HOLD"} { // a variable is named, and read as the flag is
		name := "REDLOCK_" + env
		t.Setenv(name, "nonsense")
		if text := refusedToRun(t, "k").Error(); !strings.Contains(text, name+": ") {
			t.Errorf("%s=nonsense: %q", name, text)
		}
		t.Setenv(name, "")
	}
	if text := refusedToRun(t, "k\xff").Error(); !strings.Contains(text, "UTF-8") {
		t.Errorf("a key that isn't UTF-8: %q", text)
	}
	long := strings.Repeat("k", redlock.MaxKeyLength+1)
	if text := refusedToRun(t, long).Error(); !strings.Contains(text, "key of 1025 bytes: must have at most 1024") {
		t.Errorf("a long key: %q", text)
	}
}

// refusedToRun returns what redlock run says of these arguments.
func refusedToRun(t *testing.T, args ...string) error {
	t.Helper()
	cmd := exec.Command(program, append(append([]string{"run", "--masters", "redis://127.0.0.1:1"}, args...), "--", "true")...)
	cmd.Env = append(os.Environ(), "REDLOCK_RESTART_GUARD=")
	_, text, code := finish(t, cmd)
	if code != codeUsage {
		t.Errorf("%s: code %d, want %d", args[0], code, codeUsage)
	}
	return errors.New(text)
}

// TestDurations: each flag with a duration reads what a configuration does.
func TestDurations(t *testing.T) {
	found := 0
	commands := []*cobra.Command{rootCmd()}
	for i := 0; i < len(commands); i++ {
		commands = append(commands, commands[i].Commands()...)
		commands[i].Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			found++
			if err := f.Value.Set("1d12h"); err != nil || f.Value.String() != "36h0m0s" {
				t.Errorf("%s --%s: %v, %v", commands[i].Name(), f.Name, f.Value, err)
			}
		})
	}
	if found < 8 {
		t.Errorf("there are %d such flags", found)
	}
}
