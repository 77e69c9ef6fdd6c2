package redistest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
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

// RunAs runs the tests, and returns the exit code for TestMain. The tests find in *program a file of this name, which is a link to their own binary.
// Called by this name, TestMain runs the program, so that the program need not be linked a second time.
func RunAs(m *testing.M, name string, program *string) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	*program = filepath.Join(dir, name)
	if err := os.Symlink(self, *program); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// The ports are below those that the kernel gives to outgoing connections, so that no connection takes the port of a killed
// server before its restart. Nor does a node of a cluster, which also listens on its port plus 10000.
const portMin, portMax = 10000, 20000

// maxReserved is how many ports a process keeps. Several packages are tested at a time.
const maxReserved = 1500

// reserved has the ports that this process has used, the oldest first.
var reserved struct {
	sync.Mutex
	sockets []net.PacketConn
}

// FreePort returns a TCP port of 127.0.0.1 that no other test uses, even while nobody listens on it and after this one has ended: a
// client that is closed late must not reach another test's server. It is reserved, for the tests of all processes, by binding the UDP
// port of the same number until the process ends, or has reserved maxReserved others.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := portMin + rand.IntN(portMax-portMin)
		addr := fmt.Sprintf("127.0.0.1:%d", port)
		reservation, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		keep(reservation)
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = listener.Close()
		return port
	}
	tb.Fatal("no free port")
	return 0
}

func keep(socket net.PacketConn) {
	reserved.Lock()
	defer reserved.Unlock()
	reserved.sockets = append(reserved.sockets, socket)
	if len(reserved.sockets) > maxReserved {
		_ = reserved.sockets[0].Close()
		reserved.sockets = reserved.sockets[1:]
	}
}
