//go:build unix

package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestSlots: so many commands run at a time, each with a slot of its own; the next one finds all taken.
func TestSlots(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		slots := make(map[string]bool)
		for range 2 {
			cmd := run("--concurrency", "2", "k", "--", "sh", "-c", "echo slot $REDLOCK_SLOT; read line")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			text := make([]byte, len("slot 0\n"))
			if _, err := out.Read(text); err != nil {
				t.Fatal(err)
			}
			slots[string(text)] = true
			defer func() { _ = in.Close(); _ = cmd.Wait() }()
		}
		if len(slots) != 2 || !slots["slot 0\n"] || !slots["slot 1\n"] {
			t.Errorf("two commands have the slots %v, want 0 and 1", slots)
		}
		if _, stderr, code := finishAnswered(t, run("--concurrency", "2", "--try", "k", "--", "true")); code != codeHeld {
			t.Errorf("the third: exit code %d, %s", code, stderr)
		}
		fence, env := "", redlockRun(servers).Env
		eventually(t, "both slots are shown, with their fences", func() bool { // the masters forget these for a moment
			found := regexp.MustCompile(`holders +2 slots taken\n\nSLOT +HOLDER.*\n0 .* (\d{16}) .*\n1 .* (\d{16}) .*`).FindStringSubmatch(operate(t, env, 0, "inspect", "k"))
			if found != nil {
				fence = found[2]
			}
			return found != nil
		})
		if text, want := operate(t, env, 0, "release", "k", "--slot", "1", "--fence", fence), "released slot 1 of k, which had the fencing token "+fence; !strings.Contains(text, want) {
			t.Errorf("want %s in %s", want, text)
		}
		if stdout, _, _ := finish(t, run("other", "--", "sh", "-c", "echo [$REDLOCK_SLOT]")); strings.TrimSpace(stdout) != "[]" {
			t.Errorf("without --concurrency the command has a slot: %s", stdout)
		}
	})
}
