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

// TestOncePer: a run that fails lets the next one try; after a success, nobody runs it again within the period, and whoever waited for
// the run that succeeded is among them.
func TestOncePer(t *testing.T) { eachWay(t, testOncePer) }

func testOncePer(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
	dir := t.TempDir()
	once := func(script string, args ...string) (stderr string, code int) {
		args = append(append([]string{"--once-per", "1h"}, args...), "report", "--", "sh", "-c", script)
		cmd := run(args...)
		cmd.Dir = dir
		_, stderr, code = finish(t, cmd)
		return stderr, code
	}
	if _, code := once("exit 3"); code != 3 {
		t.Fatalf("a failure has exit code %d", code)
	}
	first := run("--once-per", "1h", "report", "--", "sh", "-c", "touch here; read _; echo ran >>runs")
	first.Dir = dir
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, first)
	eventually(t, "the first runs", func() bool { return exists(filepath.Join(dir, "here")) })
	waiter := run("--once-per", "1h", "--skip-code", "0", "report", "--", "sh", "-c", "echo ran >>runs")
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
	if stderr, code := once("echo ran >>runs"); code != codeHeld || stderr != "redlock: it is done: report has run in this period\n" {
		t.Errorf("a repeat: exit code %d, %s", code, stderr)
	}
	if stderr, code := once("echo ran >>runs", "--skip-code", "0"); code != 0 || stderr != "" {
		t.Errorf("a repeat that is a success: exit code %d, %s", code, stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || strings.Count(string(text), "ran") != 1 {
		t.Errorf("runs: %q, %v", text, err)
	}
	// Machines tell each other durations, and no time of day: their clocks may differ as they like.
	marks := 0
	for _, s := range servers {
		mark, err := s.Client().HGet(t.Context(), "redlock:{report}:result", "data").Result()
		if err == nil && !regexp.MustCompile(`^\{"took_ns":\d+,"kept_ns":\d+,"lasts_ns":3240000000000\}$`).MatchString(mark) {
			t.Errorf("the mark is %q", mark)
		} else if err == nil {
			marks++
		}
	}
	if marks < 2 {
		t.Errorf("%d masters have the mark", marks)
	}
	if _, _, code := finish(t, run("report", "--", "true")); code != 0 {
		t.Errorf("without --once-per the mark doesn't matter: exit code %d", code)
	}
}
