package clients

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// locking are the words of each language for a lock that can't be had, and for the error that it prints then.
var locking = map[string][]string{
	"python": {"-c", "import sys, redlock_agent as r\ntry: r.Agent(sys.argv[1]).lock('k', wait=0).acquire()\nexcept r.LockUnavailable as e: print(e)"},
	"node":   {"--input-type=module", "-e", `import { Agent } from "./redlock_agent.mjs"; new Agent(process.argv[1]).lock("k", { wait: 0 }).catch((e) => console.log(e.message))`},
	"ruby":   {"-r./redlock_agent.rb", "-e", `begin; RedlockAgent.new(ARGV[0]).lock("k", wait: 0); rescue RedlockAgent::LockUnavailable => e; puts e.message; end`},
	"php":    {"-r", `require 'redlock.php'; try { (new Redlock\Agent($argv[1]))->lock('k', wait: 0); } catch (Redlock\LockUnavailable $e) { echo $e->getMessage(), "\n"; }`, "--"},
	"shell":  {"-c", `exec sh redlock.sh -s "$0" -w 0 k -- true 2>&1`},
	"bash":   {"-c", `exec bash redlock.sh -s "$0" -w 0 k -- true 2>&1`},
}

// TestMayNotOpen: each client that may not open the agent's socket says who may.
func TestMayNotOpen(t *testing.T) {
	t.Parallel()
	socket := serveSocket(t, func(c net.Conn) { _ = c.Close() })
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	for _, language := range installed(t) {
		args := append(append([]string{languages[language][0]}, locking[language]...), socket)
		if os.Geteuid() == 0 { // whom rights don't stop
			args = append([]string{"setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search"}, args...)
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = folder(language), append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if !strings.HasSuffix(strings.TrimSpace(string(out)), ": the agent's --socket-group and --socket-mode say who may open the socket") {
			t.Errorf("%s: %v: %q was printed", language, err, out)
		}
	}
}
