//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// ending returns how a process has ended, as testdata/endings.txt writes it.
func ending(state *os.ProcessState) string {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGKILL: "KILL"}[status.Signal()]
	}
	return strconv.Itoa(state.ExitCode())
}

// TestComparedWithOthers runs the table of testdata/endings.txt: redlock run and other programs that run a command, and how they end.
func TestComparedWithOthers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/endings.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n| | `redlock run` | `flock` | `timeout` | `env` |\n| --- | --- | --- | --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("testdata/endings.txt has no such table")
	}
	env := redlockRun(redistest.Start(t, 3)).Env
	dir := t.TempDir()
	for i, program := range []string{program + " run k --", "flock lock", "timeout 1h", "env"} {
		name := strings.Fields(program)[0]
		if _, err := exec.LookPath(name); err != nil {
			t.Log(err)
			continue
		}
		for line := range strings.Lines(table) {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
			command := regexp.MustCompile("`(.*)`").FindStringSubmatch(cells[0])[1]
			want := cells[i+1]
			if strings.Contains(want, " or ") { // timeout forgets a command that it has just started
				continue
			}
			script := "exec " + program + " " + command
			if strings.HasPrefix(command, "--help") {
				script = "exec " + name + strings.Repeat(" run", strings.Count(program, " run ")) + " " + command
			}
			cmd := exec.Command("sh", "-c", script)
			cmd.Env, cmd.Dir = env, dir
			got := ""
			if command == "sleep 1000" {
				got = terminated(t, program, cmd, strings.Contains(want, goesOn))
			} else {
				_, _, _ = finish(t, cmd)
				got = ending(cmd.ProcessState)
			}
			if got != want {
				t.Errorf("%s %s: %s, testdata/endings.txt has %s", program, command, got, want)
			}
		}
	}
}

// goesOn is said of a command that doesn't end with the program.
const goesOn = ", and it goes on"

// terminated sends TERM to a program while its command runs. A command that doesn't go on may end a moment later than the program.
func terminated(t *testing.T, program string, cmd *exec.Cmd, stays bool) string {
	t.Helper()
	cmd.Args[2] = "exec " + program + " sh -c 'echo $$ >pid; exec sleep 1000'"
	name := filepath.Join(cmd.Dir, "pid")
	_ = os.Remove(name)
	start(t, cmd)
	pid := pidIn(t, name)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait()
	if !stays {
		eventually(t, program+" ends its command", func() bool { return gone(pid) })
	} else if !gone(pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return ending(cmd.ProcessState) + goesOn
	}
	return ending(cmd.ProcessState)
}
