package clients

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestShellSignals: USR1 reaches the command, and no other process of the shell's client. INT and QUIT end it by TERM.
func TestShellSignals(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"shell", "bash"} {
		if !has(t, language) {
			continue
		}
		shell := languages[language][0]
		a := startAgent(t)
		for sent, want := range map[syscall.Signal]string{syscall.SIGUSR1: "USR1 3", syscall.SIGINT: "TERM 4", syscall.SIGQUIT: "TERM 4"} {
			cmd := exec.Command(shell, "redlock.sh", "-s", a.socket, "k", "--", "sh", "-c",
				`trap "echo USR1 3; exit 3" USR1; trap "echo TERM 4; exit 4" TERM; echo ready; while :; do sleep 0.02; done`)
			cmd.Dir, cmd.Stderr = "shell", os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for lines.Scan() && lines.Text() != "ready" {
			}
			if err := cmd.Process.Signal(sent); err != nil {
				t.Fatal(err)
			}
			lines.Scan()
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); lines.Text() != want || code != int(want[len(want)-1]-'0') {
				t.Errorf("%s, %v: %q, exit code %d, want %s", shell, sent, lines.Text(), code, want)
			}
			_ = a.lock(t, "k").Unlock()
		}
	}
}

// TestShellEarlySignals: a signal that comes while the command starts reaches the command, too.
func TestShellEarlySignals(t *testing.T) {
	t.Parallel()
	if !has(t, "shell") {
		return
	}
	dir := t.TempDir()
	// the sh that becomes the command gives the signal time to come first
	if err := os.WriteFile(filepath.Join(dir, "sh"), []byte(`#!/bin/sh
case ${2-} in *runs*)
	read -r _ _ _ _ _ session _ </proc/self/stat
	kill -s "$SENT" "$session"
	sleep 0.3
	;;
esac
exec /bin/sh "$@"
`), 0o700); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t)
	for sent, want := range map[string]int{"USR1": 138, "USR2": 140, "TERM": 143} {
		cmd := exec.Command(languages["shell"][0], "redlock.sh", "-s", a.socket, "k", "--", "sleep", "20")
		cmd.Dir, cmd.Stderr = "shell", os.Stderr
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SENT="+sent)
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%s: exit code %d, want %d", sent, code, want)
		}
		_ = a.lock(t, "k").Unlock()
	}
}

// TestShellNested: a redlock.sh within another one that has its key is refused, whatever its wait is.
func TestShellNested(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range []string{"shell", "bash"} {
		if !has(t, language) {
			continue
		}
		for _, wait := range []string{"", "WAIT=0"} {
			if line := a.start(t, language, wait, "nested", language, strings.ToUpper(language)).expect(t, "error 64 "); !strings.Contains(line, "holds the lock itself, and would wait for itself: locks are not reentrant") {
				t.Errorf("%s %s: %q was printed", language, wait, line)
			}
			_ = a.lock(t, language).Unlock()
		}
	}
}

// TestShellAfterwards: a redlock.sh that inherits the environment of one that has ended is not refused, although another process has its number. Its
// standard input may be closed.
func TestShellAfterwards(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range []string{"shell", "bash"} {
		if !has(t, language) {
			continue
		}
		call := fmt.Sprintf("exec %s redlock.sh -s %s k -- printenv REDLOCK_SH_HELD", languages[language][0], a.socket)
		cmd := exec.Command("sh", "-c", call+" <&-")
		cmd.Dir = "shell"
		before, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", language, err, before)
		}
		_, held, _ := strings.Cut(string(before), " ")
		cmd = exec.Command("sh", "-c", call)
		cmd.Dir, cmd.Env = "shell", append(os.Environ(), fmt.Sprintf("REDLOCK_SH_HELD=%d %s", os.Getpid(), held))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", language, err, out)
		}
	}
}

// TestShellVariables: a command sees the variables of the caller, although redlock.sh has words of the same names. The process whose number is in
// one of them lives on.
func TestShellVariables(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	script, err := os.ReadFile("shell/redlock.sh")
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	var want []string
	for name := range strings.FieldsFuncSeq(string(script), func(r rune) bool { return r < 'a' || r > 'z' }) {
		want = append(want, fmt.Sprintf("%s=%d", name, other.Process.Pid))
	}
	for _, language := range []string{"shell", "bash"} {
		if !has(t, language) {
			continue
		}
		cmd := exec.Command(languages[language][0], "redlock.sh", "-s", a.socket, "k", "--", "env")
		cmd.Dir, cmd.Env, cmd.Stderr = "shell", append(os.Environ(), want...), os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v", language, err)
		}
		for _, variable := range want {
			if !strings.Contains("\n"+string(out), "\n"+variable+"\n") {
				t.Errorf("%s: %s is not in the environment of the command", language, variable)
			}
		}
	}
	_ = other.Process.Signal(syscall.SIGTERM)
	_ = other.Wait()
	if ended := other.ProcessState.Sys().(syscall.WaitStatus).Signal(); ended != syscall.SIGTERM {
		t.Errorf("the other process got %v", ended)
	}
}

// TestShellEnvironment: a command doesn't see what is about a lock around its own.
func TestShellEnvironment(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range []string{"shell", "bash"} {
		if !has(t, language) {
			continue
		}
		cmd := exec.Command(languages[language][0], "redlock.sh", "-s", a.socket, "k", "--", "sh", "-c", `echo "$REDLOCK_KEY$REDLOCK_SLOT$REDLOCK_DEADLINE"`)
		cmd.Dir, cmd.Env = "shell", append(os.Environ(), "REDLOCK_KEY=j", "REDLOCK_SLOT=7", "REDLOCK_DEADLINE=2000-01-01T00:00:00Z")
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "\n" {
			t.Errorf("%s: %v: %q, want nothing", language, err, out)
		}
	}
}

// TestShellSays: the shell's client says how it is used, which program is missing, why it reaches no agent, and that it waits for long.
func TestShellSays(t *testing.T) {
	t.Parallel()
	if !has(t, "shell") {
		t.Skip()
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]string{ // what is said, and how it is called
		"-w SECONDS ":                   {"--help"},
		"-t SECONDS ":                   {"-h"},
		": No such file or directory\n": {"-s", "/nonexistent/s", "k", "--", "true"},
		"curl is missing\n":             {"k", "--", "true"},
	}
	if !testing.Short() { // it takes more than 10 seconds
		a := startAgent(t)
		busy := a.lock(t, "k")
		defer func() { _ = busy.Unlock() }()
		cases["still waiting for a lock after 10 s\n"] = []string{"-s", a.socket, "-w", "14", "k", "--", "true"}
	}
	for said, args := range cases {
		cmd := exec.Command(sh, append([]string{"redlock.sh"}, args...)...)
		cmd.Dir = "shell"
		if strings.Contains(said, "missing") {
			cmd.Env = []string{"PATH=" + filepath.Join(t.TempDir(), "nothing")}
		}
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), said) || (err == nil) != (len(args) == 1) {
			t.Errorf("%q: %v: %s, want %q", args, err, out, said)
		}
	}
}
