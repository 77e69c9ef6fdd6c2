//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestOncePer: a run that fails lets the next one try; after a success, nobody runs it again within the period, and whoever waited for
// the run that succeeded is among them.
func TestOncePer(t *testing.T) {
	servers := redistest.Start(t, 3)
	dir := t.TempDir()
	once := func(script string, args ...string) (stderr string, code int) {
		args = append(append([]string{"--once-per", "1h"}, args...), "report", "--", "sh", "-c", script)
		cmd := redlockRun(servers, args...)
		cmd.Dir = dir
		_, stderr, code = finish(t, cmd)
		return stderr, code
	}
	if _, code := once("exit 3"); code != 3 {
		t.Fatalf("a failure has exit code %d", code)
	}
	first := redlockRun(servers, "--once-per", "1h", "report", "--", "sh", "-c", "touch here; read _; echo ran >>runs")
	first.Dir = dir
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, first)
	eventually(t, "the first runs", func() bool { return exists(filepath.Join(dir, "here")) })
	waiter := redlockRun(servers, "--once-per", "1h", "--skip-code", "0", "report", "--", "sh", "-c", "echo ran >>runs")
	waiter.Dir = dir
	start(t, waiter)
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
	if err := waiter.Wait(); err != nil {
		t.Errorf("the one that has waited: %v", err)
	}
	if stderr, code := once("echo ran >>runs"); code != codeHeld || stderr != "" {
		t.Errorf("a repeat: exit code %d, %s", code, stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || strings.Count(string(text), "ran") != 1 {
		t.Errorf("runs: %q, %v", text, err)
	}
	if _, _, code := finish(t, redlockRun(servers, "report", "--", "true")); code != 0 {
		t.Errorf("without --once-per the mark doesn't matter: exit code %d", code)
	}
}
