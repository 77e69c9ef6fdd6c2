package e2e

import (
	"net"
	"os/exec"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestCommandsOfRedis runs what docs/operations.md asks of a server.
func TestCommandsOfRedis(t *testing.T) {
	needTime(t)
	s := redistest.Start(t, 1)[0]
	if err := s.Client().SlowLogGet(t.Context(), 10).Err(); err != nil {
		t.Error(err)
	}
	host, port, _ := net.SplitHostPort(s.Addr())
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip(err) // only Debian's redis-server is sure to come with it
	}
	if out, err := exec.Command("redis-cli", "-h", host, "-p", port, "--bigkeys").CombinedOutput(); err != nil {
		t.Errorf("redis-cli --bigkeys: %v\n%s", err, out)
	}
}
