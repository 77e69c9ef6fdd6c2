package doctor_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// sentinel starts a Sentinel that watches nothing, and returns its address.
func sentinel(t *testing.T) string {
	t.Helper()
	binary, err := redistest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir, addr := t.TempDir(), ""
	config := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	port := redistest.FreePort(t)
	addr = fmt.Sprintf("127.0.0.1:%d", port)
	cmd := exec.Command(binary, config, "--sentinel", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir)
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return addr
		}
	}
	t.Fatal("the Sentinel doesn't listen")
	return ""
}

// fullListener returns an address at which no connection is made and none is refused, as behind a firewall that drops packets: a
// listener whose queue of connections is full.
func fullListener(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

var eventually = redistest.Eventually

// awaitUptime waits until a server has an uptime of at least a second.
func awaitUptime(t *testing.T, server *redistest.Server) {
	t.Helper()
	eventually(t, "an uptime of a second", func() bool {
		info, err := server.Client().Info(t.Context(), "server").Result()
		if err != nil {
			t.Fatal(err)
		}
		return !strings.Contains(info, "uptime_in_seconds:0\r")
	})
}
