// Package redistest starts real Redis servers for tests, and can hang, kill and restart them.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	bound      = 2 * time.Minute // the longest wait for what a healthy server does at once
	pause      = 2 * time.Millisecond
	clientName = "redistest" // distinguishes the tests' own connections from those of the code under test
)

// Server is a Redis server process on 127.0.0.1. Its methods fail the test on any error.
type Server struct {
	tb     testing.TB
	port   int
	dir    string
	args   []string
	env    []string
	client *redis.Client

	cmd    *exec.Cmd
	exited <-chan struct{} // closed when the process has ended
	output bytes.Buffer    // what the process wrote; only to be read after it has ended
}

// Start starts n servers without persistence and with these further arguments, and waits until they answer. They end with the
// test.
func Start(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = StartWith(tb, nil, args...)
	}
	return servers
}

// StartWith starts one server as Start does, with these further environment variables ("NAME=value").
func StartWith(tb testing.TB, env []string, args ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, dir: tb.TempDir(), args: args, env: env}
	var err error
	for range 10 { // another program may have the port, if not another test
		s.port = FreePort(tb)
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

// launch starts the process and waits until it answers. It returns an error if the process can't use its port.
func (s *Server) launch() error {
	s.tb.Helper()
	path, err := Binary()
	if err != nil {
		s.tb.Fatal(err)
	}
	args := []string{"--bind", "127.0.0.1", "--port", fmt.Sprint(s.port), "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no"}
	s.cmd = exec.Command(path, append(args, s.args...)...)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.output.Reset()
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	if s.exited, err = StartProcess(s.cmd); err != nil {
		s.tb.Fatalf("start %s: %v", path, err)
	}

	deadline := time.Now().Add(bound)
	for !s.answers() {
		select {
		case <-s.exited:
			return fmt.Errorf("server on port %d has ended:\n%s", s.port, &s.output)
		case <-time.After(pause):
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("server on port %d doesn't answer after %v:\n%s", s.port, bound, &s.output)
		}
	}
	return nil
}

// answers reports whether our process answers, and not another one on the same port.
func (s *Server) answers() bool {
	conn, err := net.Dial("tcp", s.Addr()) // dial first, because a redis.Client that can't connect waits before it tries again
	if err != nil {
		return false
	}
	_ = conn.Close()
	client := s.newClient()
	defer func() { _ = client.Close() }()
	info, err := client.Info(context.Background(), "server").Result()
	return redis.HasErrorPrefix(err, "NOAUTH") || // its arguments set a password
		strings.Contains(info, fmt.Sprintf("\nprocess_id:%d\r", s.cmd.Process.Pid))
}

func (s *Server) newClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:       s.Addr(),
		ClientName: clientName,
		// go-redis's 3 s are too short for a server on a busy machine.
		ReadTimeout: bound,
		// A pool that has failed to connect as many times as its size refuses to try again for a second.
		PoolSize:                 1000,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Addr returns the server's host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL returns the server's redis:// URL.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// URLs returns the URLs of the servers.
func URLs(servers []*Server) []string {
	urls := make([]string, len(servers))
	for i, s := range servers {
		urls[i] = s.URL()
	}
	return urls
}

// Client returns a client for the test to inspect the server with. It is closed when the test ends.
func (s *Server) Client() *redis.Client { return s.client }

// Process returns the server's process ID.
func (s *Server) Process() int { return s.cmd.Process.Pid }

// Pause makes the server hang: it keeps its connections, but does not answer.
func (s *Server) Pause() {
	s.signal(syscall.SIGSTOP)
	stat := fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid)
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(pause) {
		// kill(2) returns before the process has stopped. Without /proc we can only hope that it has.
		if state, err := os.ReadFile(stat); err != nil || bytes.Contains(state, []byte(") T ")) {
			return
		}
	}
	s.tb.Errorf("server on port %d hasn't stopped after %v", s.port, bound)
}

// Resume lets a server that was paused go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Errorf("server on port %d: %v: %v", s.port, sig, err)
	}
}

// Kill kills the server, paused or not. It forgets all its data.
func (s *Server) Kill() {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.tb.Errorf("server on port %d: %v", s.port, err)
	}
	<-s.exited
}

// Restart starts a killed server again, empty and on the same port.
func (s *Server) Restart() {
	s.tb.Helper()
	if err := s.launch(); err != nil {
		s.tb.Fatal(err)
	}
}

// setting finds the settings that an advice names with their values.
var setting = regexp.MustCompile(`([a-z]+-[a-z-]+|append[a-z]+|save) (yes|no|always|noeviction|0|"")[.,:;) ]`)

// Follow does what an advice for the server's operator says: it runs the commands in the advice, and changes the settings that the advice names. It
// fails the test if there are none.
func (s *Server) Follow(advice string) {
	s.tb.Helper()
	var commands [][]any
	for _, match := range setting.FindAllStringSubmatch(advice+" ", -1) {
		commands = append(commands, []any{"CONFIG", "SET", match[1], strings.Trim(match[2], `"`)})
	}
	for _, command := range []string{"SCRIPT KILL", "REPLICAOF NO ONE"} {
		if strings.Contains(advice, command) {
			commands = append(commands, words(command))
		}
	}
	if strings.Contains(strings.ToLower(advice), "raise maxmemory") {
		commands = append(commands, []any{"CONFIG", "SET", "maxmemory", "100gb"})
	}
	if _, grant, found := strings.Cut(advice, "ACL SETUSER "); found {
		commands = append(commands, words("ACL SETUSER "+grant))
	}
	if len(commands) == 0 {
		s.tb.Errorf("nothing can be done by %q", advice)
	}
	for _, command := range commands {
		if err := s.client.Do(context.Background(), command...).Err(); err != nil {
			s.tb.Errorf("%v, as %q says: %v", command, advice, err)
		}
	}
}

func words(command string) (all []any) {
	for word := range strings.FieldsSeq(command) {
		all = append(all, word)
	}
	return all
}

// Keys returns the keys on the server, except for the fences, which outlive their locks, the marks of forced releases, and
// what is known of processes.
func (s *Server) Keys() []string {
	s.tb.Helper()
	ctx := context.Background()
	var keys []string
	scan := s.client.Scan(ctx, 0, "", 1000).Iterator()
	for scan.Next(ctx) {
		if !s.isFence(scan.Val()) && !strings.Contains(scan.Val(), ":processes:{processes}") && !strings.Contains(scan.Val(), "}:forced:") {
			keys = append(keys, scan.Val())
		}
	}
	if err := scan.Err(); err != nil {
		s.tb.Fatalf("keys of %s: %v", s.Addr(), err)
	}
	return keys
}

// isFence reports whether a key has nothing but the fence of a lock that is over.
func (s *Server) isFence(key string) bool {
	if !strings.HasSuffix(key, "}") && !strings.Contains(key, "}:slot:") || strings.HasSuffix(key, ":fence") {
		return strings.HasSuffix(key, ":fence")
	}
	first, err := s.client.LIndex(context.Background(), key, 0).Result()
	_, noNumber := strconv.ParseInt(first, 10, 64)
	return err == redis.Nil || err == nil && noNumber == nil // if it is Nil, the key has just expired
}

// Connections returns the number of the server's clients, without those of the test itself.
func (s *Server) Connections() int {
	s.tb.Helper()
	list, err := s.client.ClientList(context.Background()).Result()
	if err != nil {
		s.tb.Fatalf("clients of %s: %v", s.Addr(), err)
	}
	return strings.Count(list, "\n") - strings.Count(list, " name="+clientName+" ")
}

// Calls returns how often the server has run a command, also from within scripts.
func (s *Server) Calls(command string) (calls int) {
	s.tb.Helper()
	stats, err := s.client.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		s.tb.Fatalf("commands of %s: %v", s.Addr(), err)
	}
	row := stats["Commandstats"]["cmdstat_"+command]
	if _, err := fmt.Sscanf(row, "calls=%d,", &calls); err != nil && row != "" {
		s.tb.Fatalf("commands of %s: %q: %v", s.Addr(), row, err)
	}
	return calls
}

// RequireNoKeys fails the test, naming the keys, if a server still has keys after 20 seconds.
func RequireNoKeys(tb testing.TB, servers []*Server) {
	tb.Helper()
	deadline := time.Now().Add(20 * time.Second) // on a busy machine a release may have to be repeated
	for _, s := range servers {
		keys := s.Keys()
		for len(keys) > 0 && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
			keys = s.Keys()
		}
		if len(keys) > 0 {
			tb.Errorf("%s still holds %d keys: %q", s.Addr(), len(keys), keys)
		}
	}
}
