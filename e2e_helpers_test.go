package caddyredlock_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// bound is for what a healthy process does at once, however busy the machine is.
const bound = 20 * time.Second

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "caddy-redlock"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// build builds cmd/caddy, once.
var build = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(buildDir, "caddy")
	if out, err := exec.Command("go", "build", "-race", "-o", binary, "./cmd/caddy").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/caddy: %w\n%s", err, out)
	}
	return binary, nil
})

// caddyCommand is `caddy <args>`, with nothing of the user's own in its environment.
func caddyCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return cmd
}

// caddyfile is a configuration of one site, in which {$LISTEN} and {$ADMIN} are for runCaddy.
func caddyfile(global, site string) string {
	return "{\n\tadmin {$ADMIN}\n\tauto_https off\n\tdefault_bind 127.0.0.1\n" + global + "\n}\n" +
		"http://{$LISTEN} {\n" + site + "\n}\n"
}

// mastersOption is the global option with these masters, which have just started, and further lines.
func mastersOption(servers []*redistest.Server, lines ...string) string {
	return "redlock {\nmasters " + strings.Join(redistest.URLs(servers), " ") + "\nrestart_guard off\n" + strings.Join(lines, "\n") + "\n}"
}

// caddyProcess is a running Caddy.
type caddyProcess struct {
	url, admin string
	cmd        *exec.Cmd
	log        *safeBuffer
	exited     chan struct{} // closed when the process has ended
}

// runCaddy runs Caddy with a Caddyfile until the end of the test.
func runCaddy(t *testing.T, config string) *caddyProcess {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	listen, admin := freeAddr(t), freeAddr(t)
	c := &caddyProcess{
		url:    "http://" + listen,
		admin:  "http://" + admin,
		cmd:    caddyCommand(t, "run", "--adapter", "caddyfile", "--config", file),
		log:    new(safeBuffer),
		exited: make(chan struct{}),
	}
	c.cmd.Env = append(c.cmd.Env, "LISTEN="+listen, "ADMIN="+admin, "CADDY_ADMIN="+admin)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait() // see ProcessState
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.exited
		log := c.log.String()
		if strings.Contains(log, "WARNING: DATA RACE") || strings.Contains(log, "panic") {
			t.Error("data race or panic in Caddy")
		}
		if t.Failed() {
			t.Logf("Caddy's log, at most the last 20 KB:\n%s", log[max(0, len(log)-20_000):])
		}
	})
	eventually(t, "Caddy serves", func() bool {
		select {
		case <-c.exited:
			t.Fatal("Caddy has ended")
		default:
		}
		return listens(listen)
	})
	return c
}

func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// freeAddr is an address on which nobody listens. Its port is below those of outgoing connections.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(22_000))
		if listener, err := net.Listen("tcp", addr); err == nil {
			_ = listener.Close()
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

type safeBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// output runs a command to its end and gives what it wrote, and its exit code.
func output(t *testing.T, cmd *exec.Cmd) (text string, code int) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
