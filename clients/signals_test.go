package clients

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSignalsInPython: a signal handler may run at any line of the client, ask whether the lock is held, release it, or raise: the process goes
// on, and no key stays behind. What acquire() has taken lasts until release().
func TestSignalsInPython(t *testing.T) {
	t.Parallel()
	if !has(t, "python") {
		t.Skip()
	}
	socket := filepath.Join(t.TempDir(), "s")
	serveAgent(t, "unix", socket, exec.Command(program, "agent", "--masters", "memory://", "--listen", "unix:"+socket), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // for one that hangs
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", "signals_test.py")
	cmd.Dir, cmd.Env = "python", append(cmd.Environ(), "ADDRESS="+socket)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "\ndone\n") || strings.Contains(string(out), "ended") {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}
