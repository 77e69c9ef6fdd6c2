package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// Binary returns the path of the server to start: the one that $REDIS_SERVER names, otherwise redis-server or, if that is not
// installed, valkey-server.
func Binary() (string, error) {
	if name := os.Getenv("REDIS_SERVER"); name != "" {
		path, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("REDIS_SERVER: %w", err)
		}
		return path, nil
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("neither redis-server nor valkey-server is on the PATH: run make redis-server, which installs one")
}

// StartProcess starts a process that doesn't outlive this one, not even if this one is killed. The channel is closed when the
// process has ended, and cmd.ProcessState is set then.
func StartProcess(cmd *exec.Cmd) (exited <-chan struct{}, err error) {
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		// The kernel kills the process when the thread that started it ends, so this goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		dieWithParent(cmd)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // an error is normal: most processes are killed
		}
		close(ended)
	}()
	return ended, <-started
}

// The ports are below those that the kernel gives to outgoing connections, so that no connection takes the port of a killed
// server before its restart. A cluster node also listens on its port plus 10000.
const portMin, portMax = 10000, 32000

// FreePort returns a TCP port of 127.0.0.1 that no other test uses until this one has ended, even while nobody listens on it. It
// is reserved, for the tests of all processes, by binding the UDP port of the same number.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := portMin + rand.IntN(portMax-portMin)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		reservation, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			_ = reservation.Close()
			continue
		}
		_ = listener.Close()
		tb.Cleanup(func() { _ = reservation.Close() })
		return port
	}
	tb.Fatal("no free port")
	return 0
}
