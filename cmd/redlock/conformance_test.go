//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestConformanceCommand: how cases end that workers pass, fail and skip. TestConformance runs all cases with real clients.
func TestConformanceCommand(t *testing.T) {
	t.Parallel()
	for does, want := range map[string]string{
		"echo refused 7":                "ok    a key that is held\n1 passed, 0 skipped, 0 failed\n",
		"echo skip":                     "skip  a key that is held\n0 passed, 1 skipped, 0 failed\n",
		"echo refused":                  "FAIL  a key that is held\n      want line 1: refused [1-9]\\d*\n      got: refused\n",
		":":                             "FAIL  a key that is held\n      want line 1: refused [1-9]\\d*\n      got: nothing more\n",
		"echo refused 7; echo 'held 1'": "FAIL  a key that is held\n      want no more lines\n      got: held 1\n",
		"echo refused 7; exit 3":        "FAIL  a key that is held\n      want the end of the worker\n      got: exit status 3\n",
	} {
		out, _, code := finish(t, exec.Command(program, "conformance", "--only", "^a key that is held$", "--", "sh", "-c", does, "worker"))
		if !strings.HasPrefix(out, want) || (code == 0) != strings.HasPrefix(want, "ok") {
			t.Errorf("%s: %d\n%s\nwant %s", does, code, out, want)
		}
	}
}

// TestConformanceInterrupted: when the command is told to end, its workers end with all that they have started, and no folder is left.
func TestConformanceInterrupted(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		dir, temporary := t.TempDir(), t.TempDir()
		cmd := exec.Command(program, "conformance", "--only", "^(a lock and its end|an agent that is started anew)$", "--", "sh", "-c", `sleep 1000 & echo $! >"$LOG/$$"; wait`, "worker")
		cmd.Env = append(os.Environ(), "TMPDIR="+temporary, "LOG="+dir)
		var said bytes.Buffer
		cmd.Stderr = &said
		start(t, cmd)
		var files []string
		eventually(t, "both workers have begun", func() bool { files, _ = filepath.Glob(dir + "/*"); return len(files) == 2 })
		children := []int{pidIn(t, files[0]), pidIn(t, files[1])}
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
		left, err := os.ReadDir(temporary)
		if code := cmd.ProcessState.ExitCode(); code != 1 || said.String() != "redlock: interrupted\n" || err != nil || len(left) > 0 {
			t.Errorf("%v: exit code %d, %q, %v; left: %v", sig, code, said.String(), err, left)
		}
		for _, child := range children {
			if !gone(child) {
				t.Errorf("%v: process %d still runs", sig, child)
				_ = syscall.Kill(child, syscall.SIGKILL)
			}
		}
	}
}
