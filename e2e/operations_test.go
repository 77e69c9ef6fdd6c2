package e2e

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestCommandsOfRedis runs what docs/operations.md asks of a server.
func TestCommandsOfRedis(t *testing.T) {
	needTime(t)
	s := redistest.Start(t, 1)[0]
	if err := s.Client().SlowLogGet(t.Context(), 10).Err(); err != nil {
		t.Error(err)
	}
	host, port, _ := net.SplitHostPort(s.Addr())
	for _, command := range []string{"redis-cli --bigkeys", "redis-benchmark -t set -n 100"} {
		words := strings.Fields(command)
		if _, err := exec.LookPath(words[0]); err != nil {
			t.Skip(err) // only Debian's redis-server is sure to come with them
		}
		args := append([]string{"-h", host, "-p", port}, words[1:]...)
		if out, err := exec.Command(words[0], args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}
