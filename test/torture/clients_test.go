package torture

import (
	"errors"
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

// clientKey is what the clients of the agent and redlock run compete for, beside the workers.
const clientKey = "f"

// kind is a program that competes for clientKey, and prints what becomes of its locks, as witness.Read reads it.
type kind struct {
	name    string
	folder  string // in clients
	command string
	run     string // what takes the place of the shell's client
	needs   []string
}

// program is the file of redlock.
var program string

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "redlock-torture-")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "redlock")
	return m.Run()
}

// kinds returns those of the clients that are installed. CLIENTS=required fails where one is not.
func kinds(t *testing.T) (all []kind) {
	t.Helper()
	for _, k := range []kind{
		{name: "python", folder: "python", command: "/usr/bin/python3 worker_test.py"},
		{name: "node", folder: "node", command: "node worker_test.mjs"},
		{name: "ruby", folder: "ruby", command: "ruby worker_test.rb"},
		{name: "php", folder: "php", command: "php worker_test.php"},
		{name: "shell", folder: "shell", command: "sh worker_test.sh", needs: []string{"curl", "setsid"}},
		{name: "run", folder: "shell", command: "sh worker_test.sh", run: "run"},
		{name: "run through the agent", folder: "shell", command: "sh worker_test.sh", run: "run --agent ADDRESS"},
	} {
		var missing error
		for _, name := range append(k.needs, strings.Fields(k.command)[0]) {
			_, err := exec.LookPath(name)
			missing = errors.Join(missing, err)
		}
		switch {
		case missing == nil:
			all = append(all, k)
		case os.Getenv("CLIENTS") == "required":
			t.Error(missing)
		default:
			t.Log(missing)
		}
	}
	return all
}

// agent is a process "redlock agent".
type agent struct {
	cmd    *exec.Cmd
	exited <-chan struct{}
}

func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	<-a.exited
}

// client is a process of a kind.
type client struct {
	agent
	kind kind
	name string
	read chan struct{} // closed when all that it printed has been read
}

// startClients starts an agent, and a client of each kind.
func (r *torture) startClients(kinds ...kind) {
	r.t.Helper()
	if _, err := os.Stat(program); err != nil {
		build := exec.Command("go", "build", fmt.Sprintf("-race=%v", redistest.Race), "-ldflags", "-s -w", "-o", program, "github.com/caddy-redlock/caddy-redlock/cmd/redlock")
		if out, err := build.CombinedOutput(); err != nil {
			r.t.Fatalf("go build: %v: %s", err, out)
		}
	}
	r.folder = r.t.TempDir()
	r.startAgent()
	for _, k := range kinds {
		r.clients = append(r.clients, r.startClient(k))
	}
}

// socket is the agent's, if there is one.
func (r *torture) socket() string {
	if r.folder == "" {
		return ""
	}
	return filepath.Join(r.folder, "socket")
}

// startAgent starts an agent in place of the present one, and waits until it can be reached.
func (r *torture) startAgent(args ...string) {
	r.t.Helper()
	var before os.FileInfo // the socket of an agent that is replaced
	if len(args) > 0 {
		before, _ = os.Stat(r.socket())
	}
	r.agent = &agent{cmd: exec.Command(program, append([]string{"agent", "--listen", "unix:" + r.socket()}, args...)...)}
	r.agent.cmd.Env = r.environment()
	var err error
	if r.agent.exited, err = redistest.StartProcess(r.agent.cmd); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.agent.kill)
	for ; ; time.Sleep(10 * time.Millisecond) {
		select {
		case <-r.agent.exited:
			r.t.Fatal("the agent has ended by itself")
		default:
		}
		after, err := os.Stat(r.socket())
		if err != nil || before != nil && os.SameFile(before, after) {
			continue
		}
		if c, err := net.Dial("unix", r.socket()); err == nil {
			_ = c.Close()
			return
		}
	}
}

// environment is that of a process "redlock" with the workers' masters.
func (r *torture) environment() []string {
	var urls []string
	for _, m := range r.masters {
		urls = append(urls, "redis://"+m.Addr())
	}
	return append(os.Environ(), "REDLOCK_MASTERS="+strings.Join(urls, ","), fmt.Sprint("REDLOCK_RESTART_GUARD=", guard), fmt.Sprint("REDLOCK_TIMEOUT=", timeout), fmt.Sprint("REDLOCK_MAX_TTL=", ttl))
}

func (r *torture) startClient(k kind) *client {
	r.t.Helper()
	r.started++
	c := &client{kind: k, name: fmt.Sprintf("%s.%d", k.name, r.started), read: make(chan struct{})}
	command := append(strings.Fields(k.command), "compete", clientKey)
	c.cmd = exec.Command(command[0], command[1:]...)
	c.cmd.Dir = filepath.Join(r.sources, k.folder)
	c.cmd.Env = append(r.environment(), "ADDRESS=unix:"+r.socket(), "TOKEN=", "STOP="+r.stopFile(), "TMPDIR="+r.folder, "WAIT=5", "PATIENCE=5", "PYTHONDONTWRITEBYTECODE=1")
	if k.run != "" {
		c.cmd.Env = append(c.cmd.Env, "RUN="+program+" "+strings.ReplaceAll(k.run, "ADDRESS", "unix:"+r.socket())+" --wait 5s")
	}
	printed, theirs, err := os.Pipe()
	check(err)
	c.cmd.Stdout = theirs
	c.exited, err = redistest.StartProcess(c.cmd)
	_ = theirs.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	go func() {
		defer close(c.read)
		defer func() { _ = printed.Close() }()
		r.witness.Read(c.name, clientKey, printed)
	}()
	r.t.Cleanup(c.kill)
	return c
}

// stopFile is there when clients are to end.
func (r *torture) stopFile() string { return filepath.Join(r.folder, "stop") }

// endClients requires each client to get one more lock, and ends them and the agent.
func (r *torture) endClients() {
	r.t.Helper()
	for _, c := range r.clients {
		before := r.witness.Ended(c.name)
		for deadline := time.Now().Add(bound); r.witness.Ended(c.name) == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				r.t.Errorf("%s gets no lock in %v", c.name, bound)
				break
			}
		}
	}
	check(os.WriteFile(r.stopFile(), nil, 0o600))
	for _, c := range r.clients {
		<-c.read
		<-c.exited
		if state := c.cmd.ProcessState; !state.Success() {
			r.t.Errorf("%s: %v", c.name, state)
		}
	}
	if r.agent != nil {
		_ = r.agent.cmd.Process.Signal(syscall.SIGTERM)
		<-r.agent.exited
	}
}
