//go:build unix

package main

import (
	"bytes"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestAgentGoneInWait: a run whose agent is killed or stopped while it waits, or before, ends, and says what to do.
func TestAgentGoneInWait(t *testing.T) {
	t.Parallel()
	const dead, hangs = "it has ended before it gave the lock: start it again", "if it hangs, start it again"
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		before bool // the run
		flags  []string
		says   string
	}{
		{"killed", syscall.SIGKILL, false, nil, dead},
		{"killed in a bounded wait", syscall.SIGKILL, false, []string{"--wait", "2h"}, dead},
		{"stopped", syscall.SIGSTOP, false, nil, hangs},
		{"stopped in a bounded wait", syscall.SIGSTOP, false, []string{"--wait", "2h"}, hangs},
		{"stopped before", syscall.SIGSTOP, true, []string{"--try"}, hangs},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 1)
			a := startAgent(t, servers)
			a.hold(`{"key":"k"}`)
			cmd := redlockRun(servers, slices.Concat([]string{"--agent", "unix:" + a.path}, c.flags, []string{"k", "--", "echo", "ran"})...)
			if c.before {
				a.signal(c.signal)
				cmd.Env = append(cmd.Env, heldVariable+`={"k":1}`) // has it ask who holds k
			}
			var told bytes.Buffer
			cmd.Stdout, cmd.Stderr = &told, &told
			start(t, cmd)
			if !c.before {
				eventually(t, "the run waits", func() bool { return a.waiting() == 1 })
				a.signal(c.signal)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != codeNoQuorum || !strings.Contains(told.String(), c.says) {
				t.Errorf("exit code %d, %q; want %d and %q", code, &told, codeNoQuorum, c.says)
			}
		})
	}
}
