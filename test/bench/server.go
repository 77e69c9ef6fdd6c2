package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server that keeps nothing on disk.
type server struct {
	addr   string
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended
	client *redis.Client // to look into it
}

var errEnded = errors.New("redis-server has ended at once")

// startServers starts n servers, at once.
func startServers(n int) ([]*server, error) {
	servers, errs := make([]*server, n), make([]error, n)
	var all sync.WaitGroup
	for i := range servers {
		all.Go(func() { servers[i], errs[i] = startServer() })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		stopServers(servers)
		return nil, err
	}
	return servers, nil
}

// startServer tries again where another has taken the port meanwhile.
func startServer() (s *server, err error) {
	for range 5 {
		if s, err = startServerOnce(); !errors.Is(err, errEnded) {
			break
		}
	}
	return s, err
}

func startServerOnce() (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	s := &server{addr: addr, dir: dir, client: redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, PoolSize: 100})}
	if err := s.launch(); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

func (s *server) launch() error {
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", "redis.log")
	if err := s.cmd.Start(); err != nil {
		return err
	}
	startedServers.Store(s.cmd.Process, nil)
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait()
	}()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case <-s.ended:
			return fmt.Errorf("%w: see %s", errEnded, s.dir)
		default:
		}
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			continue
		}
		_ = conn.Close()
		info, _ := s.info("server")
		if info["process_id"] == strconv.Itoa(s.cmd.Process.Pid) {
			return nil
		}
	}
	return fmt.Errorf("redis-server at %s doesn't answer; see %s", s.addr, s.dir)
}

// info reads sections of INFO.
func (s *server) info(section ...string) (map[string]string, error) {
	text, err := s.client.Info(context.Background(), section...).Result()
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, err
}

// pause makes the server hang.
func (s *server) pause() error {
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	stat := fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid)
	for range 1000 { // kill(2) returns before the process has stopped
		if state, err := os.ReadFile(stat); err != nil || bytes.Contains(state, []byte(") T ")) {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("redis-server doesn't stop")
}

func (s *server) resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// startedServers are to be killed when a signal ends the run.
var startedServers sync.Map

func killAtSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		for process := range startedServers.Range {
			_ = process.(*os.Process).Kill()
		}
		os.Exit(1)
	}()
}

func (s *server) kill() {
	if s.cmd.Process == nil {
		return
	}
	startedServers.Delete(s.cmd.Process)
	_ = s.cmd.Process.Kill()
	<-s.ended
}

func stopServers(servers []*server) {
	for _, s := range servers {
		if s != nil {
			s.kill()
			_ = s.client.Close()
			_ = os.RemoveAll(s.dir)
		}
	}
}

func addrs(servers []*server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.addr
	}
	return list
}

// reading is what the servers have done so far.
type reading struct {
	cpu      time.Duration
	commands int
}

// read sums up the servers' CPU time, and the commands of these names.
func read(servers []*server, names []string) (reading, error) {
	var r reading
	for _, s := range servers {
		info, err := s.info("cpu", "commandstats")
		if err != nil {
			return r, err
		}
		for field, value := range info {
			switch name, isCommand := strings.CutPrefix(field, "cmdstat_"); {
			case isCommand && slices.Contains(names, name):
				calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
				n, err := strconv.Atoi(calls)
				if err != nil {
					return r, err
				}
				r.commands += n
			case field == "used_cpu_sys" || field == "used_cpu_user":
				seconds, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return r, err
				}
				r.cpu += time.Duration(seconds * float64(time.Second))
			}
		}
	}
	return r, nil
}

// keysLeft counts locks that nobody holds any more. This library's fences stay for a while by design, each in the list of its lock or
// beside it, as does its register of the sets of masters: they are not counted.
func keysLeft(servers []*server) (int, error) {
	n := 0
	ctx := context.Background()
	for _, s := range servers {
		keys := s.client.Scan(ctx, 0, "", 10000).Iterator()
		for keys.Next(ctx) {
			if strings.Contains(keys.Val(), "}:") || strings.Contains(keys.Val(), ":processes:{processes}") {
				continue
			}
			first, err := s.client.LIndex(ctx, keys.Val(), 0).Result()
			if _, notNumber := strconv.ParseInt(first, 10, 64); err == nil && notNumber == nil || errors.Is(err, redis.Nil) {
				continue // a fence, or a key that has just expired
			}
			n++
		}
		if err := keys.Err(); err != nil {
			return n, err
		}
	}
	return n, nil
}
