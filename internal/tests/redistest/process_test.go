package redistest_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const parentEnv = "REDISTEST_PARENT" // set in the process of TestHelperParent

// TestHelperParent is not a test but a process that starts a server, prints its process ID, and hangs.
func TestHelperParent(t *testing.T) {
	if os.Getenv(parentEnv) == "" {
		t.Skip("run by TestServersDieWithTheTest")
	}
	s := redistest.Start(t, 1)[0]
	fmt.Println(processID(t, s))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func processID(t *testing.T, s *redistest.Server) string {
	t.Helper()
	info, err := s.Client().Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, id, _ := strings.Cut(info, "process_id:")
	id, _, _ = strings.Cut(id, "\r")
	return id
}

func TestServersDieWithTheTest(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux kills the servers of a test that was killed")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperParent$")
	cmd.Env = append(os.Environ(), parentEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-exited
	file := "/proc/" + strings.TrimSpace(id) + "/cmdline" // empty if the process is dead, but not waited for
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		line, err := os.ReadFile(file)
		if err != nil || len(line) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server still runs: %q", line)
		}
	}
}

// TestServersOutliveThreads ends the thread that has started a server, but not the process.
func TestServersOutliveThreads(t *testing.T) {
	started := make(chan *redistest.Server)
	go func() {
		runtime.LockOSThread() // the goroutine ends without unlocking, so the thread ends too
		started <- redistest.Start(t, 1)[0]
	}()
	s := <-started
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		if err := s.Client().Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
