package e2e

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// countConnections returns the URL of a master that nobody runs, and how often it has been connected to.
func countConnections(t *testing.T) (url string, connections *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections = new(atomic.Int32)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			_ = connection.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return "redis://user:" + secret + "@" + listener.Addr().String(), connections
}

// A configuration that is only looked at, or refused, connects to no master, and so sends no password.
func TestValidateConnectsToNoMaster(t *testing.T) {
	needTime(t)
	t.Parallel()
	url, connections := countConnections(t)
	config := func(more, rule string) string {
		return caddyfile("redlock {\nmasters "+url+"\n"+more+"\n}", rule+"respond served")
	}
	file := filepath.Join(t.TempDir(), "Caddyfile")
	command := func(text string, args ...string) (string, int) {
		t.Helper()
		if err := os.WriteFile(file, []byte(strings.NewReplacer("{$LISTEN}", "127.0.0.1:1", "{$ADMIN}", "off").Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		return output(t, caddyCommand(t, append(args, "--config", file, "--adapter", "caddyfile")...))
	}
	for _, args := range [][]string{{"validate"}, {"adapt", "--validate"}} {
		if text, code := command(config("", payRule), args...); code != 0 {
			t.Errorf("caddy %q: exit code %d\n%s", args, code, text)
		}
	}
	for key, hint := range map[string]bool{"order:{path.1}": true, "order:{path.1:int}:{header.X-Order}": true, "order:{path.1:int}:{method}": false} {
		text, code := command(config("", "redlock "+key+"\n"), "validate")
		if hinted := strings.Contains(text, "a placeholder without a kind"); code != 0 || hinted != hint {
			t.Errorf("key %s: hint %t, exit code %d\n%s", key, hinted, code, text)
		}
	}
	twice := strings.Replace(config("", payRule), url, url+" "+url, 1)
	if text, code := command(twice, "validate"); code == 0 || !strings.Contains(text, "each must be an independent server") {
		t.Errorf("a master that is named twice is not found: exit code %d\n%s", code, text)
	}
	mixed := strings.Replace(config("", payRule), url, url+" memory://", 1)
	for _, args := range [][]string{{"validate"}, {"redlock", "doctor"}} {
		if text, code := command(mixed, args...); code == 0 || !strings.Contains(text, "master 2 is memory://, beside servers") {
			t.Errorf("caddy %q: memory beside a server is not found: exit code %d\n%s", args, code, text)
		}
	}
	if text, code := command(config("instance web\u00e9", payRule), "validate"); code == 0 || !strings.Contains(text, "instance") {
		t.Errorf("what package redlock refuses is not found: exit code %d\n%s", code, text)
	}

	c := runCaddy(t, caddyfile("", "respond served"))
	if a := c.load(t, config("", "redlock order:{path.1} {\nttl 31s\n}\n")); a.status != http.StatusBadRequest || !strings.Contains(a.body, "max_ttl") {
		t.Errorf("POST /load: status %d, body %q; want 400 that names max_ttl", a.status, a.body)
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections for configurations that never ran", n)
	}
	if a := c.load(t, config("", payRule)); a.status != http.StatusOK {
		t.Fatalf("POST /load: status %d, body %q", a.status, a.body)
	}
	eventually(t, "a configuration that runs connects", func() bool { return connections.Load() > 0 })
}
