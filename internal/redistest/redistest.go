// Package redistest starts real redis-servers for tests, and hangs, kills and restarts them.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// The ports are below those that the kernel gives to outgoing connections: nobody takes the port
	// of a killed server before its restart. A cluster node also listens on its port plus 10000.
	portMin, portMax = 10000, 32000

	bound      = 10 * time.Second // for what a healthy server does at once
	pause      = 2 * time.Millisecond
	clientName = "redistest" // tells the inspecting connections from those of the code under test
)

// Server is a redis-server process on 127.0.0.1. Its methods fail the test on any error.
type Server struct {
	tb     testing.TB
	port   int
	dir    string
	args   []string
	env    []string
	client *redis.Client

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	output bytes.Buffer  // what it wrote; to be read after that
}

// Start starts n servers without persistence, with these redis-server arguments besides, and waits
// until they answer. They end with the test.
func Start(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = StartWith(tb, nil, args...)
	}
	return servers
}

// StartWith starts one server, as Start does, with these environment variables ("NAME=value") besides.
func StartWith(tb testing.TB, env []string, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, dir: tb.TempDir(), args: args, env: env}
	var err error
	for range 10 { // another process may take the port between our look and the server's
		s.port = portMin + rand.IntN(portMax-portMin)
		if err = s.launch(); err == nil {
			tb.Cleanup(s.Kill)
			s.client = s.newClient()
			tb.Cleanup(func() { _ = s.client.Close() })
			return s
		}
	}
	tb.Fatal(err)
	return nil
}

// launch starts the process and waits until it answers; an error says that it can't use the port.
func (s *Server) launch() error {
	s.tb.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		s.tb.Fatal("redis-server not found: run make test, which installs it")
	}
	args := []string{"--bind", "127.0.0.1", "--port", fmt.Sprint(s.port), "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no"}
	s.cmd, s.exited = exec.Command(path, append(args, s.args...)...), make(chan struct{})
	s.cmd.Env = append(os.Environ(), s.env...)
	s.output.Reset()
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("start redis-server: %v", err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // killed is how it should end
		close(exited)
	}(s.cmd, s.exited)

	deadline := time.Now().Add(bound)
	for !s.answers() {
		select {
		case <-s.exited:
			return fmt.Errorf("redis-server on port %d has ended:\n%s", s.port, &s.output)
		case <-time.After(pause):
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("redis-server on port %d doesn't answer after %v:\n%s", s.port, bound, &s.output)
		}
	}
	return nil
}

// answers says whether our process, not another one on the same port, answers.
func (s *Server) answers() bool {
	conn, err := net.Dial("tcp", s.Addr()) // a redis.Client that can't connect waits before it tries again
	if err != nil {
		return false
	}
	_ = conn.Close()
	client := s.newClient()
	defer func() { _ = client.Close() }()
	info, err := client.Info(context.Background(), "server").Result()
	return redis.HasErrorPrefix(err, "NOAUTH") || // it has a password by its arguments
		strings.Contains(info, fmt.Sprintf("\nprocess_id:%d\r", s.cmd.Process.Pid))
}

func (s *Server) newClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:       s.Addr(),
		ClientName: clientName,
		// A pool that has failed to connect as often as it has places refuses to try for a second.
		PoolSize:                 1000,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL is the server's redis:// URL.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// URLs are the URLs of the servers.
func URLs(servers []*Server) []string {
	urls := make([]string, len(servers))
	for i, s := range servers {
		urls[i] = s.URL()
	}
	return urls
}

// Client is for the test to look into the server. It is closed with the test.
func (s *Server) Client() *redis.Client { return s.client }

// Pause makes the server hang: it keeps its connections and answers nothing.
func (s *Server) Pause() {
	s.signal(syscall.SIGSTOP)
	stat := fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid)
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(pause) {
		// kill(2) returns before the process has stopped. Where there is no /proc we have to hope.
		if state, err := os.ReadFile(stat); err != nil || bytes.Contains(state, []byte(") T ")) {
			return
		}
	}
	s.tb.Errorf("redis-server on port %d hasn't stopped after %v", s.port, bound)
}

// Resume ends a Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Errorf("redis-server on port %d: %v: %v", s.port, sig, err)
	}
}

// Kill ends the server at once, paused or not. It forgets everything.
func (s *Server) Kill() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.tb.Errorf("redis-server on port %d: %v", s.port, err)
	}
	<-s.exited
}

// Restart starts a killed server again: empty, on its port.
func (s *Server) Restart() {
	s.tb.Helper()
	if err := s.launch(); err != nil {
		s.tb.Fatal(err)
	}
}

// Keys are the keys on the server, without the fences, which outlive their locks for a minute.
func (s *Server) Keys() []string {
	s.tb.Helper()
	ctx := context.Background()
	var keys []string
	scan := s.client.Scan(ctx, 0, "", 1000).Iterator()
	for scan.Next(ctx) {
		if !strings.HasSuffix(scan.Val(), ":fence") {
			keys = append(keys, scan.Val())
		}
	}
	if err := scan.Err(); err != nil {
		s.tb.Fatalf("keys of %s: %v", s.Addr(), err)
	}
	return keys
}

// Connections counts the clients of the server, without those that inspect it.
func (s *Server) Connections() int {
	s.tb.Helper()
	list, err := s.client.ClientList(context.Background()).Result()
	if err != nil {
		s.tb.Fatalf("clients of %s: %v", s.Addr(), err)
	}
	return strings.Count(list, "\n") - strings.Count(list, " name="+clientName+" ")
}

// RequireNoKeys fails the test, naming the keys, unless all servers are without keys within 5 s.
func RequireNoKeys(tb testing.TB, servers []*Server) {
	tb.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for _, s := range servers {
		keys := s.Keys()
		for len(keys) > 0 && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
			keys = s.Keys()
		}
		if len(keys) > 0 {
			tb.Errorf("%s still holds %d keys: %.10q", s.Addr(), len(keys), keys)
		}
	}
}
