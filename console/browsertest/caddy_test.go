package browsertest

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// runCaddy runs Caddy with the admin endpoint and a site at these addresses until the end of the test, and waits until both answer.
func runCaddy(t *testing.T, admin, site, config string) {
	t.Helper()
	dir := t.TempDir()
	binary, file := filepath.Join(dir, "caddy-redlock"), filepath.Join(dir, "Caddyfile")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "./cmd/caddy")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "run", "--config", file)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("Caddy's log:\n%s", log.String())
		}
	})
	for _, addr := range []string{admin, site} { // the admin endpoint answers first
		for deadline := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				_ = conn.Close()
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
}

// Caddy's admin endpoint wants to know where a browser's request comes from. A page opened by hand comes from nowhere, and needs
// the empty origin; the page itself gets by with the rules.
func TestInCaddy(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	admin := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	site := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	busy := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-busy:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(upstream.Close)
	t.Cleanup(func() { close(busy) })
	config := func(origins string) string {
		return fmt.Sprintf(`{
	admin %[1]s {
		origins %[1]s %[2]s
	}
	redlock {
		masters %[3]s
		restart_guard off
		timeout 2s
	}
}
http://%[4]s {
	redlock order:{path.0}
	reverse_proxy %[5]s
}
`, admin, origins, servers[0].URL(), site, upstream.Listener.Addr())
	}
	runCaddy(t, admin, site, config(`""`))
	answered := make(chan int)
	go func() {
		response, err := http.Get("http://" + site + "/42")
		if err != nil {
			t.Error(err)
			close(answered)
			return
		}
		response.Body.Close()
		answered <- response.StatusCode
	}()
	b := open(t, "http://"+admin+"/redlock/")
	b.await("live", "live.innerText == 'Live'")
	b.awaitText("order:42")
	b.awaitText("held for")
	b.looks("caddy")
	b.click(".keys .key")
	b.awaitText("Held by")
	b.await("live", "live.innerText == 'Live'")
	b.click("button.release")
	b.click("button[value=release]")
	b.awaitText("Released: order:42")
	if status := <-answered; status != http.StatusInternalServerError {
		t.Errorf("the request whose lock was released: status %d", status)
	}

	response, err := http.Post("http://"+admin+"/load", "text/caddyfile", strings.NewReader(config("")))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	b = open(t, "http://"+admin+"/redlock/")
	b.awaitText("client is not allowed to access from origin")
	b.forgive("403 (Forbidden)")
}
