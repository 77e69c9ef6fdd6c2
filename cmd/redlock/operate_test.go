//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// contents returns what a file has, without spaces around it, or "" if there is none.
func contents(name string) string {
	text, _ := os.ReadFile(name)
	return strings.TrimSpace(string(text))
}

// TestOperators: the commands of operators, on masters and without anybody else.
func TestOperators(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	command := func(want int, args ...string) string {
		t.Helper()
		return operate(t, redlockRun(servers).Env, want, args...)
	}
	requireSays := func(text, want string) {
		t.Helper()
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	requireSays(command(0, "masters"), "3 of 3 masters available, 2 needed: locks can be taken")
	requireSays(command(3, "inspect", "k"), "Nobody holds the key")
	requireSays(command(3, "release", "k", "--fence", "7"), "nobody holds the key")
	requireSays(command(3, "forget", "k"), "no master remembers anything")
	requireSays(command(1, "release", "k"), "redlock inspect shows it")

	examine := exec.Command(program, "doctor", "--json", "--patience", "1m")
	examine.Env = redlockRun(servers).Env
	text, stderr, _ := finish(t, examine) // its exit code depends on how fast the masters are
	var report struct{ Voting int }
	if err := json.Unmarshal([]byte(text), &report); err != nil || report.Voting != 3 {
		t.Errorf("doctor: %d vote, %v: %s%s", report.Voting, err, text, stderr)
	}

	dir := t.TempDir()
	holder := redlockRun(servers, "k", "--", "sh", "-c", "echo $REDLOCK_FENCE >fence; sleep 1000")
	holder.Dir = dir
	start(t, holder)
	fence := ""
	eventually(t, "the holder runs", func() bool { fence = contents(filepath.Join(dir, "fence")); return fence != "" })
	eventually(t, "the masters know the fence", func() bool { return strings.Contains(command(0, "inspect", "k"), "fence   "+fence) }) // they forget it after 5 s, until the lease is renewed
	requireSays(command(0, "release", "k", "--fence", fence), "released k, which had the fencing token "+fence)
	if _ = holder.Wait(); holder.ProcessState.ExitCode() != codeLost {
		t.Errorf("the holder: %v", holder.ProcessState)
	}

	once := func(want int) {
		t.Helper()
		if _, stderr, code := finish(t, redlockRun(servers, "--once-per", "1h", "k", "--", "true")); code != want {
			t.Errorf("exit code %d, want %d: %s", code, want, stderr)
		}
	}
	once(0)
	once(codeHeld)
	requireSays(command(0, "inspect", "k"), "result  ")
	requireSays(command(0, "forget", "k"), "forgotten")
	once(0)
	servers[0].Kill()
	servers[1].Kill()
	requireSays(command(2, "masters"), "NO LOCK CAN BE TAKEN")
	requireSays(command(2, "inspect", "k"), "Too few masters answer")
}
