package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const debugLog = "debug\n"

// secretFile returns a file with a password and a final newline, as editors write it.
func secretFile(t *testing.T, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// requireSecrecy fails the test if Caddy's log, at level debug, or its admin endpoint shows any of these.
func requireSecrecy(t *testing.T, c *caddyProcess, secrets ...string) {
	t.Helper()
	response, err := client.Get(c.admin + "/config/")
	if err != nil {
		t.Fatal(err)
	}
	config := read(t, response)
	log := c.log.String()
	if !strings.Contains(log, `"level":"debug"`) || !strings.Contains(config.body, "{file.") {
		t.Fatalf("no debug log, or no configuration with a placeholder: %s", config.body)
	}
	for _, s := range secrets {
		if strings.Contains(log, s) {
			t.Errorf("the log shows %q", s)
		}
		if strings.Contains(config.body, s) {
			t.Errorf("GET /config/ shows %q", s)
		}
	}
}

func TestPassword(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, "--requirepass", secret)
	b, release := newHeldBackend(t)
	option := mastersOption(servers, "timeout "+calm.String(), "password {file."+secretFile(t, secret)+"}")
	c := runCaddy(t, caddyfile(debugLog+option, payRule+b.proxy()))
	wait := b.hold(t, c.url+"/orders/4711/pay")
	requireStatus(t, post(t, c.url+"/orders/4711/pay"), http.StatusLocked)

	// the lock is on the servers with the password, and its key must not be shown
	inspect := redis.NewClient(&redis.Options{Addr: servers[0].Addr(), Password: secret})
	t.Cleanup(func() { _ = inspect.Close() })
	if n := inspect.Exists(t.Context(), "redlock:{order:4711}").Val(); n != 1 {
		t.Errorf("%d keys redlock:{order:4711} on the master, want 1", n)
	}

	release()
	requireStatus(t, wait()[0], http.StatusOK)
	requireSecrecy(t, c, secret, "order:4711")
}

// Errors that the servers answer are logged without what was sent to them.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	const wrong = "wr0ng-YmFy"
	servers := redistest.Start(t, 3, "--requirepass", secret)
	option := mastersOption(servers, "timeout "+calm.String(), "username nobody", "password {file."+secretFile(t, wrong)+"}")
	c := runCaddy(t, caddyfile(debugLog+option, payRule+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/4711/pay"), http.StatusConflict)
	for _, s := range servers {
		requireLogLine(t, c, s.URL(), "WRONGPASS")
	}
	requireSecrecy(t, c, wrong, "order:4711")
}

// A password in a URL is not shown either, whether or not the server can be reached.
func TestPasswordInURL(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3, "--requirepass", secret)
	servers[2].Kill()
	var urls []string
	for _, s := range servers {
		urls = append(urls, "{file."+secretFile(t, strings.Replace(s.URL(), "redis://", "redis://:"+secret+"@", 1))+"}")
	}
	option := "redlock {\nmasters " + strings.Join(urls, " ") + "\ntimeout " + calm.String() + "\nrestart_guard off\n}"
	c := runCaddy(t, caddyfile(debugLog+option, payRule+"respond served"))
	requireStatus(t, post(t, c.url+"/orders/4711/pay"), http.StatusOK)
	requireLogLine(t, c, "master unavailable", servers[2].URL())
	requireSecrecy(t, c, secret, "order:4711")
}

// "caddy validate" works without the masters, and shows no secret.
func TestCaddyValidate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, option string
		code         int
		want         string
	}{
		{"unreachable masters", "masters redis://:" + secret + "@127.0.0.1:1 redis://127.0.0.1:2", 0, "Valid configuration"},
		{"one master twice", "masters redis://:" + secret + "@127.0.0.1:1 redis://127.0.0.1:1", 1, "both redis://127.0.0.1:1"},
		{"unreadable URL", "masters redis://:" + secret + "@[::1", 1, "master 1 of 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "Caddyfile")
			config := "{\nredlock {\n" + test.option + "\n}\n}\nhttp://127.0.0.1:1 {\n" + payRule + "}\n"
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			text, code := output(t, caddyCommand(t, "validate", "--adapter", "caddyfile", "--config", file))
			if code != test.code || !strings.Contains(text, test.want) {
				t.Errorf("caddy validate: exit code %d, want %d and %q:\n%s", code, test.code, test.want, text)
			}
			if strings.Contains(text, secret) {
				t.Errorf("caddy validate shows the password:\n%s", text)
			}
		})
	}
}
