package traefik_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/test/plugintest"
)

// TestSlots has the interpreted plugin share slots with a Caddy and two net/http servers.
func TestSlots(t *testing.T) {
	if testing.Short() {
		t.Skip("builds Caddy")
	}
	plugintest.ShareSlots(t, interpreted(t), 200, func(servers []*redistest.Server, site string) string { return runCaddy(t, servers, site) })
}

// runCaddy builds Caddy and runs it with a site, and returns its URL.
func runCaddy(t *testing.T, servers []*redistest.Server, site string) string {
	t.Helper()
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "caddy"), filepath.Join(dir, "Caddyfile")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "github.com/caddy-redlock/caddy-redlock/cmd/caddy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))
	config := "{\nadmin off\nauto_https off\nredlock {\nmasters " + strings.Join(redistest.URLs(servers), " ") + "\nrestart_guard off\ntimeout 2s\n}\n}\nhttp://" + address + " {\n" + site + "\n}\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "run", "--adapter", "caddyfile", "--config", file)
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	log, text := plugintest.NewBuffer()
	cmd.Stdout, cmd.Stderr = log, log
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("Caddy's log:\n%s", text())
		}
	})
	for response, err := http.Get("http://" + address + "/ready"); ; response, err = http.Get("http://" + address + "/ready") {
		if err == nil {
			_ = response.Body.Close()
			return "http://" + address
		}
		select {
		case <-exited:
			t.Fatal("Caddy has ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
