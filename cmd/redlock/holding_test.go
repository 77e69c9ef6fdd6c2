//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestStarting: a command that waits for masters which have just started says so, also where nobody looks, and what to do in a trial.
func TestStarting(t *testing.T) {
	t.Parallel()
	const guard = "REDLOCK_RESTART_GUARD=20m"
	servers := redistest.Start(t, 3)
	a := newAgent(t, servers)
	agent := exec.Command(program, "agent", "--listen", "unix:"+a.path)
	agent.Env = append(a.env, guard)
	start(t, agent)
	eventually(t, "the agent serves", func() bool {
		response, err := a.client().Get("http://redlock/healthz")
		return err == nil && response.Body.Close() == nil
	})
	for way, args := range map[string][]string{"masters": nil, "agent": {"--agent", "unix:" + a.path}} {
		cmd := redlockRun(servers, append(args, "k", "--", "true")...)
		cmd.Env = append(cmd.Env, guard)
		log := filepath.Join(t.TempDir(), "log")
		file, err := os.Create(log)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = file
		start(t, cmd)
		_ = file.Close()
		eventually(t, way+": it says what it waits for", func() bool {
			text, _ := os.ReadFile(log)
			return regexp.MustCompile(`(?m)^redlock: waiting for masters that may have forgotten locks, .* before \d\d:\d\d:\d\d, for another \d+m\d+s; REDLOCK_RESTART_GUARD=off is for trials\n$`).Match(text)
		})
	}
	cmd := redlockRun(servers, "--wait", "5m", "k", "--", "true")
	cmd.Env = append(cmd.Env, guard)
	if _, text, code := finish(t, cmd); code != codeNoQuorum || !strings.HasSuffix(text, "(REDLOCK_RESTART_GUARD=off is for trials)\n") {
		t.Errorf("with --wait: %d, %s", code, text)
	}
}
