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

	"github.com/caddy-redlock/caddy-redlock/internal/limits"
)

// TestLimits: redlock run refuses what is beyond a limit before it looks for masters, and names the flag.
func TestLimits(t *testing.T) {
	limits.Test(t, limits.With("--", "-"), func(option, value string) error {
		flag := "--" + strings.ReplaceAll(option, " ", "-") + "=" + value
		cmd := exec.Command(program, "run", "--masters", "redis://127.0.0.1:1", flag, "k", "--", "true")
		cmd.Env = append(os.Environ(), "REDLOCK_RESTART_GUARD=")
		_, text, code := finish(t, cmd)
		if code != codeUsage {
			t.Errorf("%s: code %d, want %d", flag, code, codeUsage)
		}
		return errors.New(text)
	}, "max ttl", "max skew", "restart guard", "timeout", "ttl", "wait", "max hold", "once per", "concurrency")
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
