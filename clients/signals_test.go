package clients

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSignals: a signal handler may run at any line of the client, ask whether the lock is held, release it, or raise: the process goes on, and
// no key stays behind.
func TestSignals(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	serveAgent(t, "unix", socket, exec.Command(program, "agent", "--masters", "memory://", "--listen", "unix:"+socket), nil)
	for language, file := range map[string]string{"python": "signals_test.py", "ruby": "signals_test.rb", "php": "signals_test.php"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			if !has(t, language) {
				t.Skip()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // for one that hangs
			defer cancel()
			cmd := exec.CommandContext(ctx, languages[language][0], file)
			cmd.Dir, cmd.Env = language, append(cmd.Environ(), "ADDRESS="+socket)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "\ndone\n") || strings.Contains(string(out), "ended") {
				t.Fatalf("%v: %s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}
