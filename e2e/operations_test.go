package e2e

import (
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestPasswordChange changes the password of the masters' user as docs/operations.md tells, while requests hold their keys.
func TestPasswordChange(t *testing.T) {
	needTime(t)
	servers := redistest.Start(t, 3)
	user := func(rules ...string) {
		t.Helper()
		for _, s := range servers {
			if err := s.Client().Do(t.Context(), arguments("ACL SETUSER redlock", rules...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	user(append([]string{"on", ">old"}, redistest.LeastRights(t)...)...)
	b, release := newHeldBackend(t)
	config := func(password string) string {
		return caddyfile(mastersOption(servers, "timeout "+calm.String(), "username redlock", "password "+password), payRule+b.proxy())
	}
	c := runCaddy(t, config("old"))
	wait := holdLocks(t, c, b, servers)
	user(">new")
	if a := c.load(t, config("new")); a.status != http.StatusOK {
		t.Fatalf("POST /load: status %d: %s", a.status, a.body)
	}
	user("<old")
	requireStatus(t, post(t, c.url+"/orders/0/pay"), http.StatusLocked) // it is held, and the new password works
	release()
	requireServed(t, wait, servers)
	requireStatus(t, post(t, c.url+"/orders/0/pay"), http.StatusOK)
	if log := c.log.String(); strings.Contains(log, "master unavailable") {
		t.Error("a master was unavailable meanwhile")
	}
}

func arguments(command string, more ...string) (all []any) {
	for _, word := range append(strings.Fields(command), more...) {
		all = append(all, word)
	}
	return all
}

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
