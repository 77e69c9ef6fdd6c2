package main

import (
	"os/exec"
	"strings"
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
