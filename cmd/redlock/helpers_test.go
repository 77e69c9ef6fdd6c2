//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// program is the file of redlock.
var program string

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "redlock" {
		main()
	}
	os.Exit(redistest.RunAs(m, "redlock", &program))
}

// redlock returns a command redlock run on these masters, which are patient with a busy machine.
func redlockRun(servers []*redistest.Server, args ...string) *exec.Cmd {
	cmd := exec.Command(program, append([]string{"run"}, args...)...)
	cmd.Env = append(os.Environ(), "REDLOCK_MASTERS="+strings.Join(redistest.URLs(servers), ","), "REDLOCK_RESTART_GUARD=off", "REDLOCK_TIMEOUT=1s", "REDLOCK_MAX_TTL=1m")
	return cmd
}

// eachWay runs a test of redlock run twice: on masters, and through an agent.
func eachWay(t *testing.T, test func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd)) {
	t.Helper()
	for _, way := range []string{"masters", "agent"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			var through []string
			if way == "agent" {
				through = []string{"--agent", "unix:" + startAgent(t, servers).path}
			}
			test(t, servers, func(args ...string) *exec.Cmd { return redlockRun(servers, append(through, args...)...) })
		})
	}
}

// finish runs a command, and returns what it prints and its exit code, which is -1 for a signal.
func finish(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if exited := new(exec.ExitError); !errors.As(err, &exited) {
			t.Fatal(err)
		}
	}
	return out.String(), slow.ReplaceAllString(errs.String(), ""), cmd.ProcessState.ExitCode()
}

// finishAnswered is finish for a command that doesn't wait for masters: it is run again while a majority of them is late.
func finishAnswered(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	eventually(t, "a majority of the masters answers in time", func() bool {
		stdout, stderr, code = finish(t, &exec.Cmd{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir})
		return code != codeNoQuorum
	})
	return stdout, stderr, code
}

// operate runs a command of operators until it has this exit code, or one that isn't that of masters which are late. It returns all that was
// printed. What a command has forgotten in vain at one master, the next one finds at none.
func operate(t *testing.T, env []string, want int, args ...string) (text string) {
	t.Helper()
	late := false
	eventually(t, "the masters answer in time", func() bool {
		cmd := exec.Command(program, args...)
		cmd.Env = append(slices.Clip(env), "REDLOCK_TIMEOUT=5s")
		stdout, stderr, code := finish(t, cmd)
		text += stdout + stderr
		if done := code == want || late && args[0] == "forget" && code == 3; !done && code != 2 {
			t.Errorf("%q: exit code %d, want %d: %s", args, code, want, text)
		}
		late = code == 2
		return !late || want == 2
	})
	return text
}

// slow is what is said where a busy machine takes longer than a second to connect.
var slow = regexp.MustCompile(`(?m)^redlock: (waiting for masters, and giving up at .*|a majority of the masters has a vote again: waiting for the lock)\n`)

func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

var eventually = redistest.Eventually

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// pidIn waits for a file with the ID of a process.
func pidIn(t *testing.T, name string) (pid int) {
	t.Helper()
	eventually(t, name, func() bool {
		text, err := os.ReadFile(name)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err == nil
	})
	return pid
}

// gone reports whether a process doesn't run any more.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return syscall.Kill(pid, 0) != nil
	}
	return bytes.Contains(stat, []byte(") Z "))
}
