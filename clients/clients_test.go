// Package clients has nothing but the tests of the clients in other languages, which are files to be copied.
package clients

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// serve serves an agent on a Unix socket and on a TCP address with a token.
func serve(t *testing.T) (locker *redlock.Locker, socket, address string) {
	t.Helper()
	locker, err := redlock.Open([]string{"memory://"}, redlock.WithTimeout(time.Second), redlock.WithTTL(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	socket = filepath.Join(t.TempDir(), "s")
	for network, opts := range map[string][]agent.Option{"unix": nil, "tcp": {agent.WithToken("secret")}} {
		l, err := net.Listen(network, map[string]string{"unix": socket, "tcp": "127.0.0.1:0"}[network])
		if err != nil {
			t.Fatal(err)
		}
		if network == "tcp" {
			address = l.Addr().String()
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = agent.New(locker, opts...).Serve(ctx, 0, l)
		}()
		t.Cleanup(func() { stop(); <-ended })
	}
	return locker, socket, address
}

// run runs the test of a client, in its language. CLIENTS=required fails where the language is not installed.
func run(t *testing.T, folder, program string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("CLIENTS") == "required" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	locker, socket, address := serve(t)
	busy, err := locker.TryLock(t.Context(), "busy")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Unlock() }()
	cmd := exec.Command(path, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "SOCKET="+socket, "ADDRESS="+address, "TOKEN=secret", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lock, err := locker.Lock(t.Context(), "free", redlock.WithWait(20*time.Second))
	if err != nil {
		t.Fatalf("the key was not released: %v", err)
	}
	_ = lock.Unlock()
}

func TestPython(t *testing.T) { run(t, "python", "python3", "redlock_test.py") }

// TestCurl runs the command that docs/agent.md begins with.
func TestCurl(t *testing.T) {
	run(t, ".", "sh", "-euc", `
		command -v curl >/dev/null || exit 0
		curl -sN --max-time 1 --unix-socket "$SOCKET" http://redlock/v1/lock -d '{"key":"free"}' | grep '^{"fence":[0-9]*,"mark":0,"valid_ms":[0-9]*}$'
		curl -s --unix-socket "$SOCKET" http://redlock/v1/lock -d '{"key":"busy","try":true}' | grep '"status":423'`)
}
