//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// logged has a command write its errors into a file, and returns what is in it so far.
func logged(t *testing.T, cmd *exec.Cmd) (text func() string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	cmd.Stderr = file
	return func() string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// TestNoMajority: a command that waits for masters says at once for which, why and until when, and that they are back; then it runs.
func TestNoMajority(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		servers[0].Kill()
		servers[1].Kill()
		for _, args := range [][]string{nil, {"--wait", "10m"}, {"--once-per", "1h"}} {
			cmd := run(append(args, "k", "--", "true")...)
			text := logged(t, cmd)
			start(t, cmd)
			line := regexp.MustCompile(`(?m)^redlock: waiting for masters, and giving up at \d\d:\d\d:\d\d with exit code 69: 1 of 3 have a vote, and 2 are needed: .*` + servers[0].Addr() + `: .*` + servers[1].Addr() + `: .*$`)
			eventually(t, fmt.Sprint(args, ": it says what it waits for"), func() bool { return line.MatchString(text()) })
			servers[1].Restart()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%q: %v, %s", args, err, text())
			}
			if !strings.HasSuffix(text(), "redlock: a majority of the masters has a vote again: waiting for the lock\n") && len(line.FindAllString(text(), -1)) > 2 {
				t.Errorf("%q: %s", args, text())
			}
			servers[1].Kill()
		}
	})
}

// TestNoMajorityInTime: without a majority nothing outlives its period, and --try doesn't wait.
func TestNoMajorityInTime(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		servers[0].Kill()
		servers[1].Kill()
		for _, args := range [][]string{{"--try"}, {"--once-per", "2s"}, {"--once-per", "1s", "--wait", "10h"}, {"--once-per", "1h", "--try"}, {"--wait", "1s"}} {
			if _, text, code := finish(t, run(append(args, "k", "--", "true")...)); code != codeNoQuorum || !strings.Contains(text, "needed") && !strings.Contains(text, "masters") {
				t.Errorf("%q: exit code %d, %s", args, code, text)
			}
		}
	})
}

// TestTryAfterRestarts: a majority has restarted while nothing ran, and --try waits for the seconds in which processes register there.
func TestTryAfterRestarts(t *testing.T) {
	servers := redistest.Start(t, 3)
	run := func(args ...string) *exec.Cmd { return redlockRun(servers, args...) }
	if _, text, code := finish(t, run("k", "--", "true")); code != 0 {
		t.Fatal(text)
	}
	for _, s := range servers[:2] {
		s.Kill()
		s.Restart()
	}
	for _, args := range [][]string{{"--try"}, {"--try", "--once-per", "1h"}} {
		if _, text, code := finish(t, run(append(args, "k", "--", "true")...)); code != 0 {
			t.Errorf("%q: exit code %d, %s", args, code, text)
		}
	}
}

// TestPatienceWithMasters: without --wait a command gives up a while after the last majority, with an exit code of its own.
func TestPatienceWithMasters(t *testing.T) {
	servers := redistest.Start(t, 3)
	for _, s := range servers[:2] {
		s.Kill()
	}
	standard := mastersPatience
	mastersPatience = time.Second
	defer func() { mastersPatience = standard }()
	c := &runCommand{key: "k", ttl: 10 * time.Second, most: 1}
	c.masters.Masters = redistest.URLs(servers)
	_, err := c.acquire(t.Context())
	var failed *coded
	if !errors.As(err, &failed) || failed.code != codeNoQuorum || !strings.Contains(err.Error(), servers[0].Addr()) {
		t.Errorf("%v", err)
	}
}

// TestTryAfterRestart: --try waits for what takes seconds: masters that don't know this process yet, as none was there when they started.
func TestTryAfterRestart(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	if _, text, code := finish(t, redlockRun(servers, "k", "--", "true")); code != 0 {
		t.Fatalf("exit code %d, %s", code, text)
	}
	for _, s := range servers[1:] {
		s.Kill()
		s.Restart()
	}
	for i := range 2 {
		if out, text, code := finish(t, redlockRun(servers, "--try", "--once-per", "1h", fmt.Sprint(i), "--", "echo", "ran")); code != 0 || out != "ran\n" || text != "" {
			t.Errorf("exit code %d, %q %q", code, out, text)
		}
	}
}

// TestMaxHoldAsWritten: a command may run for as long as --max-hold says, also if that is less than the time between TERM and KILL, or more
// than a lease; then it gets TERM, and after a while KILL. What is said names the reason. It has the lock later than this test begins to
// count, so TERM never comes too early by the load of a machine.
func TestMaxHoldAsWritten(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		for _, c := range []struct {
			hold  time.Duration
			flags []string
			trap  string
		}{
			{5 * time.Second, []string{"-k", "5s"}, "echo term; exit 0"},
			{5 * time.Second, []string{"-k", "2s"}, "echo term"},
			{12 * time.Second, nil, "echo term"},
		} {
			cmd := run(append(c.flags, "--max-hold", c.hold.String(), "k", "--", "sh", "-c", "trap '"+c.trap+"' TERM; echo begun; while :; do sleep 0.01; done")...)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			text := logged(t, cmd)
			began := time.Now()
			start(t, cmd)
			said := ""
			for lines := bufio.NewScanner(out); lines.Scan(); said += lines.Text() + "\n" {
				if ran := time.Since(began); lines.Text() == "term" && ran < c.hold {
					t.Errorf("%v %q: TERM came after %v", c.hold, c.flags, ran)
				}
			}
			_ = cmd.Wait()
			want := "redlock: the command was ended: it has had the lock on k for --max-hold " + c.hold.String() + "\n"
			if code := cmd.ProcessState.ExitCode(); code != codeLost || said != "begun\nterm\n" || !strings.HasSuffix(text(), want) { // the shell may say that its child was terminated
				t.Errorf("%v %q: exit code %d, %q %q", c.hold, c.flags, code, said, text())
			}
		}
		redistest.RequireNoKeys(t, servers)
	})
}

// TestOneAttempt: with --attempts 1 a failure ends the period's work, too.
func TestOneAttempt(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		once := func(script string) int {
			_, _, code := finish(t, run("--once-per", "1h", "--attempts", "1", "k", "--", "sh", "-c", script))
			return code
		}
		if first, next := once("exit 3"), once("exit 0"); first != 3 || next != codeHeld {
			t.Errorf("exit codes %d, then %d", first, next)
		}
	})
}

// TestFirstProcess: the first process of a container can't end by a signal that it sends itself: it has the exit code in its place.
func TestFirstProcess(t *testing.T) {
	if exec.Command("unshare", "-pf", "--kill-child", "true").Run() != nil {
		t.Skip("no namespaces for processes can be made here")
	}
	servers := redistest.Start(t, 3)
	direct := redlockRun(servers, "k", "--", "sh", "-c", "kill -TERM $$")
	cmd := exec.Command("unshare", append([]string{"-pf", "--kill-child"}, direct.Args...)...)
	cmd.Env = direct.Env
	if _, text, code := finish(t, cmd); code != 128+int(syscall.SIGTERM) || text != "" {
		t.Errorf("exit code %d, %s", code, text)
	}
}
