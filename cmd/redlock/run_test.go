//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestExitCodes: the exit code is the command's, or that of what has gone wrong, as with flock, timeout and env.
func TestExitCodes(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		notExecutable := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(notExecutable, []byte("#!/bin/sh\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			command []string
			code    int // -1: by a signal
		}{
			{[]string{"true"}, 0},
			{[]string{"sh", "-c", "exit 7"}, 7},
			{[]string{"sh", "-c", "exit 255"}, 255},
			{[]string{"sh", "-c", "kill -9 $$"}, 137},
			{[]string{"sh", "-c", "kill -TERM $$"}, -1},
			{[]string{"does-not-exist"}, 127},
			{[]string{"/does/not/exist"}, 127},
			{[]string{notExecutable}, 126},
			{[]string{"sh", "-c", "echo x >/dev/full"}, shell(t, "echo x >/dev/full")},
		} {
			cmd := run(append([]string{"k", "--"}, c.command...)...)
			if _, stderr, code := finish(t, cmd); code != c.code {
				t.Errorf("%q: exit code %d, want %d: %s", c.command, code, c.code, stderr)
			} else if status := cmd.ProcessState.Sys().(syscall.WaitStatus); code == -1 && status.Signal() != syscall.SIGTERM {
				t.Errorf("%q: %v", c.command, status.Signal())
			}
			if _, err := exec.LookPath("env"); err == nil && c.code > 0 && c.code < 128 {
				if _, _, code := finish(t, exec.Command("env", c.command...)); code != c.code {
					t.Errorf("%q: env has exit code %d, redlock %d", c.command, code, c.code)
				}
			}
		}
		redistest.RequireNoKeys(t, servers)
	})
}

func shell(t *testing.T, script string) int {
	t.Helper()
	_, _, code := finish(t, exec.Command("sh", "-c", script))
	return code
}

// TestWrongUse has an exit code of its own, and says what is wrong.
func TestWrongUse(t *testing.T) {
	for want, args := range map[string][]string{
		"no key":                      nil,
		"no command":                  {"k"},
		"flags come before it":        {"k", "--try", "--", "true"},
		"unknown flag: --nonsense":    {"--nonsense", "k", "--", "true"},
		"want it without --wait":      {"--try", "--wait", "1s", "k", "true"},
		"--kill-after 6s: want at":    {"--kill-after", "6s", "k", "true"},
		"--once-per 1ms":              {"--once-per", "1ms", "k", "true"},
		"--concurrency 0: want a":     {"--concurrency", "0", "k", "true"},
		"for one command at a time":   {"--concurrency", "2", "--once-per", "1h", "k", "true"},
		"--max-hold -1s":              {"--max-hold", "-1s", "k", "true"},
		"--attempts 2: want 1":        {"--once-per", "1h", "--attempts", "2", "k", "true"},
		"--attempts 1: want 1, with":  {"--attempts", "1", "k", "true"},
		"--skip-code belongs":         {"--skip-code", "0", "k", "true"},
		"--agent and --masters":       {"--agent", "unix:/s", "--masters", "redis://127.0.0.1:1", "k", "true"},
		"want unix:/path":             {"--agent", "10.0.0.1:80", "k", "true"},
		"between 0 and 255":           {"-E", "256", "k", "true"},
		"no masters":                  {"k", "true"},
		"is memory://":                {"--masters", "memory://", "k", "true"},
		"redlock: --ttl 2m0s":         {"--masters", "redis://127.0.0.1:1", "--ttl", "2m", "k", "true"},
		"redlock: --ttl 1ms":          {"--masters", "redis://127.0.0.1:1", "--ttl", "1ms", "k", "true"},
		"key of 2000 bytes":           {"--masters", "redis://127.0.0.1:1", strings.Repeat("k", 2000), "true"},
		"--restart-guard \"perhaps\"": {"--masters", "redis://127.0.0.1:1", "--restart-guard", "perhaps", "k", "true"},
	} {
		cmd := exec.Command(program, append([]string{"run"}, args...)...)
		if _, stderr, code := finish(t, cmd); code != codeUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, %q; want %q", args, code, stderr, want)
		}
	}
	a := newAgent(t, redistest.Start(t, 1))
	a.env = append(a.env, "REDLOCK_AGENT_TOKEN=secret")
	a.start()
	cmd := exec.Command(program, "run", "--agent", "unix:"+a.path, "k", "true")
	cmd.Env = append(os.Environ(), "REDLOCK_AGENT_TOKEN=wrong")
	if _, stderr, code := finish(t, cmd); code != codeUsage || !strings.Contains(stderr, "token is missing or wrong") {
		t.Errorf("a wrong token: exit code %d, %q", code, stderr)
	}
}

// TestCluster: a Redis Cluster is the only master of redlock run, of an agent, and of the commands for operators.
func TestCluster(t *testing.T) {
	nodes := redistest.StartCluster(t, 2, 0, "--appendonly", "yes", "--appendfsync", "always")
	a := newAgent(t, nodes)
	a.env = append(a.env, "REDLOCK_MASTERS="+redistest.ClusterURL(nodes))
	a.start()
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env = a.env
		return cmd
	}
	holder := command("run", "k", "--", "sh", "-c", "echo; read _")
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	runs, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, holder)
	if _, err := runs.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	through := []string{"run", "--agent", "unix:" + a.path}
	if _, _, code := finishAnswered(t, command(append(through, "--try", "k", "--", "true")...)); code != codeHeld {
		t.Errorf("through an agent, while another holds the key: exit code %d", code)
	}
	_ = stdin.Close()
	if _, errs, code := finish(t, command(append(through, "k", "--", "true")...)); code != 0 {
		t.Errorf("through an agent: exit code %d, %s", code, errs)
	}
	for _, name := range []string{"masters", "doctor"} {
		if text := operate(t, a.env, 0, name); !strings.Contains(text, "redis-cluster://"+nodes[0].Addr()) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestHeld: one that doesn't get the lock runs nothing, and says so with a line and its exit code; one that waits gets it.
func TestHeld(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		dir := t.TempDir()
		holder := run("k", "--", "sh", "-c", "touch here; read _")
		holder.Dir = dir
		stdin, err := holder.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		start(t, holder)
		eventually(t, "the holder runs", func() bool { return exists(filepath.Join(dir, "here")) })
		const why = "redlock: another has the lock on k\n"
		for _, c := range []struct {
			args []string
			says string
			code int
		}{
			{[]string{"--try"}, why, codeHeld}, {[]string{"--wait", "1ms", "-E", "9"}, why, 9}, {[]string{"--try", "-q"}, "", codeHeld}, {[]string{"--try", "-E", "0"}, "", 0},
		} {
			if out, errs, code := finishAnswered(t, run(append(c.args, "k", "--", "echo", "ran")...)); code != c.code || out != "" || errs != c.says {
				t.Errorf("%q: exit code %d, %q %q", c.args, code, out, errs)
			}
		}
		waiter := run("k", "--", "sh", "-c", "touch next; echo $REDLOCK_KEY $REDLOCK_FENCE $REDLOCK_DEADLINE")
		waiter.Dir = dir
		var out bytes.Buffer
		waiter.Stdout = &out
		start(t, waiter)
		if _, _, code := finish(t, run("other", "--", "true")); code != 0 {
			t.Error("another key is not free")
		}
		if exists(filepath.Join(dir, "next")) {
			t.Error("two run at once")
		}
		if err := stdin.Close(); err != nil {
			t.Fatal(err)
		}
		if err := waiter.Wait(); err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(out.String())
		if len(fields) != 3 || fields[0] != "k" {
			t.Fatalf("environment %q", fields)
		}
		if fence, err := strconv.ParseUint(fields[1], 10, 64); err != nil || fence == 0 {
			t.Errorf("fence %s", fields[1])
		}
		if deadline, err := time.Parse(time.RFC3339, fields[2]); err != nil || time.Until(deadline) > time.Minute {
			t.Errorf("deadline %s", fields[2])
		}
	})
}

// TestRunInItself: one inside another for the same key would wait for itself, however many are in between, and says so at once. One that has
// only inherited the variable doesn't.
func TestRunInItself(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		in := func(cmd *exec.Cmd, key string, flags ...string) *exec.Cmd {
			return run(append(flags, append([]string{key, "--"}, cmd.Args...)...)...)
		}
		for name, cmd := range map[string]*exec.Cmd{
			"directly":        in(run("--wait", "10s", "k", "--", "echo", "ran"), "k"),
			"another between": in(in(run("--wait", "10s", "k", "--", "echo", "ran"), "j"), "k"),
			"without a wait":  in(run("--try", "k", "--", "echo", "ran"), "k"),
			"in capitals":     in(run("--wait", "10s", "K", "--", "echo", "ran"), "k"),
			"with a long ttl": in(run("--wait", "10s", "k", "--", "echo", "ran"), "k", "--ttl", "1m"),
		} {
			if out, errs, code := finishAnswered(t, cmd); code != codeUsage || out != "" || !strings.Contains(errs, "would wait for itself") {
				t.Errorf("%s: exit code %d, %q %q", name, code, out, errs)
			}
		}
		if out, errs, code := finishAnswered(t, in(run("--concurrency", "2", "k", "--", "echo", "ran"), "k", "--concurrency", "2")); code != 0 || out != "ran\n" {
			t.Errorf("another slot: exit code %d, %q %q", code, out, errs)
		}
		inherited := run("--wait", "1ms", "k", "--", "echo", "ran")
		inherited.Env = append(inherited.Env, `REDLOCK_HELD={"k":1}`)
		if out, errs, code := finishAnswered(t, inherited); code != 0 || out != "ran\n" {
			t.Errorf("free: exit code %d, %q %q", code, out, errs)
		}
		inherited = run("--wait", "1ms", "j", "--", "env", `REDLOCK_HELD={"k":1}`, "sh", "-c", `"$0" "$@"`)
		inherited.Args = append(inherited.Args, run("--try", "k", "--", "echo", "ran").Args...)
		if out, errs, code := finishAnswered(t, in(inherited, "k")); code != codeHeld || out != "" || errs != "redlock: another has the lock on k\n" {
			t.Errorf("another has it: exit code %d, %q %q", code, out, errs)
		}
	})
}

// TestEnvironment: a command inherits where the masters are, and nothing that is about its own lock alone.
func TestEnvironment(t *testing.T) {
	servers := redistest.Start(t, 1)
	cmd := redlockRun(servers, "k", "--", "env")
	cmd.Env = append(cmd.Env, "REDLOCK_AGENT_TOKEN=secret", "REDLOCK_WAIT=30s", "REDLOCK_TRY=false", "REDLOCK_TTL=10s", "REDLOCK_MAX_HOLD=1h", "REDLOCK_KILL_AFTER=1s", "REDLOCK_ONCE_PER=1h",
		"REDLOCK_ATTEMPTS=1", "REDLOCK_CONCURRENCY=1", "REDLOCK_CONFLICT_EXIT_CODE=9", "REDLOCK_SKIP_CODE=0", "REDLOCK_SLOT=7")
	out, errs, code := finish(t, cmd)
	var names []string
	for line := range strings.Lines(out) {
		if name, _, _ := strings.Cut(line, "="); strings.HasPrefix(name, "REDLOCK_") {
			names = append(names, strings.TrimPrefix(name, "REDLOCK_"))
		}
	}
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "AGENT_TOKEN DEADLINE FENCE HELD KEY MASTERS MAX_TTL RESTART_GUARD TIMEOUT"; got != want || code != 0 {
		t.Errorf("exit code %d, %s\n%s\nwant %s", code, errs, got, want)
	}
}

// TestNoQuorum has an exit code of its own, and says which masters don't answer.
func TestNoQuorum(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		servers[0].Kill()
		servers[1].Kill()
		if _, stderr, code := finish(t, run("--wait", "1s", "k", "--", "true")); code != codeNoQuorum || !strings.Contains(stderr, servers[0].Addr()) && !strings.Contains(stderr, "agent") {
			t.Errorf("exit code %d, %s", code, stderr)
		}
	})
}

// TestSignals: signals are passed on to the command, and end the wait for the lock.
func TestSignals(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM} {
			caught := make(chan os.Signal, 1)
			signal.Notify(caught, sig) // a child ignores what these tests do, such as HUP under nohup, but not what they catch
			dir := t.TempDir()
			cmd := run("k", "--", "sh", "-c", fmt.Sprintf("trap 'touch got; exit 5' %d; touch here; while :; do sleep 0.01; done", sig))
			cmd.Dir = dir
			start(t, cmd)
			eventually(t, "the command runs", func() bool { return exists(filepath.Join(dir, "here")) })
			if sig == syscall.SIGTERM { // one waits behind it
				waiter := run("k", "--", "true")
				start(t, waiter)
				time.Sleep(20 * time.Millisecond) // it may be before or in the wait
				_ = waiter.Process.Signal(sig)
				_ = waiter.Wait()
				if status := waiter.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != sig {
					t.Errorf("the one that waits ended with %v", waiter.ProcessState)
				}
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 5 || !exists(filepath.Join(dir, "got")) {
				t.Errorf("%v: %v", sig, cmd.ProcessState)
			}
			signal.Stop(caught)
		}
		redistest.RequireNoKeys(t, servers)
	})
}

// TestKilled: the command ends with redlock, with all that it has started in its group.
func TestKilled(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		dir := t.TempDir()
		cmd := run("k", "--", "sh", "-c", "trap '' TERM; sleep 1000 & echo $! >child; echo $$ >command; wait")
		cmd.Dir = dir
		start(t, cmd)
		command, child := pidIn(t, filepath.Join(dir, "command")), pidIn(t, filepath.Join(dir, "child"))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the command and its child are gone", func() bool { return gone(command) && gone(child) })
	})
}

// TestStopped: while redlock is stopped, it can't renew the lock. Its command is gone before another gets it.
func TestStopped(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		dir := t.TempDir()
		cmd := run("--ttl", "5s", "k", "--", "sh", "-c", "trap '' TERM; echo $$ >command; while :; do sleep 0.01; done")
		cmd.Dir = dir
		start(t, cmd)
		command := pidIn(t, filepath.Join(dir, "command"))
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		next := run("k", "--", "sh", "-c", fmt.Sprintf("grep -q ') [^Z] ' /proc/%d/stat", command))
		if _, stderr, code := finish(t, next); code == 0 {
			t.Errorf("the command still runs when another has the lock: %s", stderr)
		}
		_ = cmd.Process.Signal(syscall.SIGCONT)
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != codeLost {
			t.Errorf("after it was stopped: %v", cmd.ProcessState)
		}
	})
}

// TestLost: a command whose lease can't be renewed gets TERM, and is killed if it doesn't end.
func TestLost(t *testing.T) {
	for _, c := range []struct{ trap, want string }{{"touch got; exit 0", "got"}, {"", "command"}} {
		eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
			dir := t.TempDir()
			cmd := run("--ttl", "10s", "--kill-after", "5s", "k", "--", "sh", "-c", "trap '"+c.trap+"' TERM; echo $$ >command; while :; do sleep 0.01; done")
			cmd.Dir = dir
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			start(t, cmd)
			pidIn(t, filepath.Join(dir, "command"))
			for _, s := range servers {
				s.Pause()
			}
			if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != codeLost || !strings.Contains(stderr.String(), "was lost") || !exists(filepath.Join(dir, c.want)) {
				t.Errorf("trap %q: %v, %s", c.trap, cmd.ProcessState, stderr.String())
			}
		})
	}
}

// TestBackground: a command that leaves processes behind is told so, whether they are in its group or not.
func TestBackground(t *testing.T) {
	servers := redistest.Start(t, 3)
	commands := []string{"sleep 1000 & echo $! >left"}
	if _, err := exec.LookPath("setsid"); err == nil && exists("/proc/self/stat") {
		commands = append(commands, "setsid sleep 1000 & echo $! >left")
	}
	for _, command := range commands {
		dir := t.TempDir()
		cmd := redlockRun(servers, "k", "--", "sh", "-c", "("+command+") >/dev/null 2>&1")
		cmd.Dir = dir
		_, stderr, code := finish(t, cmd)
		if code != 0 || !strings.Contains(stderr, "must not put itself into the background") {
			t.Errorf("%s: exit code %d, %q", command, code, stderr)
		}
		_ = syscall.Kill(pidIn(t, filepath.Join(dir, "left")), syscall.SIGKILL)
	}
}

// TestStreams: the command's streams are those of redlock.
func TestStreams(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		cmd := run("k", "--", "sh", "-c", "cat; echo err >&2")
		cmd.Stdin = strings.NewReader("in\x00\n")
		if stdout, stderr, code := finish(t, cmd); stdout != "in\x00\n" || stderr != "err\n" || code != 0 {
			t.Errorf("%q, %q, exit code %d", stdout, stderr, code)
		}
	})
}
