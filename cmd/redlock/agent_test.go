//go:build unix

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// agentProcess is a real agent on a Unix socket.
type agentProcess struct {
	t      *testing.T
	path   string
	args   []string
	env    []string
	limit  string // an argument of ulimit
	cmd    *exec.Cmd
	log    io.Writer // nil: nobody reads it
	exited <-chan struct{}
}

func startAgent(t *testing.T, servers []*redistest.Server, args ...string) *agentProcess {
	t.Helper()
	a := newAgent(t, servers, args...)
	a.start()
	return a
}

// newAgent returns an agent that is not started yet.
func newAgent(t *testing.T, servers []*redistest.Server, args ...string) *agentProcess {
	t.Helper()
	a := &agentProcess{t: t, path: filepath.Join(t.TempDir(), "s"), args: args}
	a.env = append(os.Environ(), "REDLOCK_MASTERS="+strings.Join(redistest.URLs(servers), ","), "REDLOCK_RESTART_GUARD=off", "REDLOCK_TIMEOUT=1s", "REDLOCK_MAX_TTL=10m")
	t.Cleanup(a.kill)
	return a
}

func (a *agentProcess) start() {
	a.t.Helper()
	command := append([]string{program, "agent", "--listen", "unix:" + a.path}, a.args...)
	if a.limit != "" {
		command = append([]string{"sh", "-c", "ulimit " + a.limit + ` && exec "$0" "$@"`}, command...)
	}
	a.cmd = exec.Command(command[0], command[1:]...)
	a.cmd.Env = a.env
	a.cmd.Stderr = a.log
	var err error
	if a.exited, err = redistest.StartProcess(a.cmd); err != nil {
		a.t.Fatal(err)
	}
	eventually(a.t, "the agent is ready", func() bool {
		response, err := a.client().Get("http://redlock/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

func (a *agentProcess) signal(s syscall.Signal) { _ = a.cmd.Process.Signal(s) }

func (a *agentProcess) kill() {
	if a.cmd == nil {
		return
	}
	a.signal(syscall.SIGKILL)
	<-a.exited
}

// client returns a client without kept connections.
func (a *agentProcess) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.path)
	}}}
}

func (a *agentProcess) dial() net.Conn {
	a.t.Helper()
	c, err := net.Dial("unix", a.path)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = c.Close() })
	return c
}

// hold takes a lock with a request whose body stays open.
func (a *agentProcess) hold(body string) net.Conn {
	a.t.Helper()
	c := a.dial()
	_, _ = fmt.Fprintf(c, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\n\r\n", len(body)+1, body)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		a.t.Fatalf("%s: %v, %v", body, response, err)
	}
	return c
}

func TestAgentSettings(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"needs a token":              {"--listen", "127.0.0.1:0"},
		"want octal digits":          {"--listen", "unix:" + filepath.Join(t.TempDir(), "s"), "--socket-mode", "rw"},
		"--max-clients -1":           {"--max-clients", "-1"},
		"--max-waiters 0":            {"--max-waiters", "0"},
		"--token-file: open /nobody": {"--token-file", "/nobody"},
		"--listen nonsense":          {"--listen", "nonsense"},
		"make this folder":           {"--listen", "unix:" + filepath.Join(t.TempDir(), "missing", "too", "s")},
		"mkdir /proc/redlock: ":      {"--listen", "unix:/proc/redlock/redlock.sock"}, // not cut out as the name of the program
		"at most 1":                  {"--listen", "unix:/tmp/" + strings.Repeat("s", 108)},
	} {
		cmd := exec.Command(program, append([]string{"agent", "--masters", "memory://"}, args...)...)
		cmd.Env = append(os.Environ(), "REDLOCK_AGENT_TOKEN=")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v: %s, want %q", args, err, out, want)
		}
	}
}

// TestAgentSocket: rights of the socket, one that was left behind, and one that is in use.
func TestAgentSocket(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	a := startAgent(t, servers, "--socket-mode", "0600")
	info, err := os.Stat(a.path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	second := exec.Command(program, "agent", "--masters", "memory://", "--listen", "unix:"+a.path)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another process listens there") {
		t.Errorf("a second agent: %v: %s", err, out)
	}
	a.kill()
	a.start()
}

// TestAgentLongPath: the longest path that a socket may have.
func TestAgentLongPath(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := newAgent(t, redistest.Start(t, 1))
	a.path = dir + "/" + strings.Repeat("s", max(1, maxSocketPath-len(dir)-1))
	a.start()
}

// TestSocketName: a socket takes the place of no other one before it is published.
func TestSocketName(t *testing.T) {
	dir := t.TempDir()
	for n := range 100 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf(".%d-%d", os.Getpid(), n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := socketRights{mode: "0600"}.listen(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]net.Listener{u})
	if all, err := os.ReadDir(dir); err != nil || len(all) != 101 {
		t.Errorf("%d files, %v; want all that were there, and a socket", len(all), err)
	}
}

// TestAgentOfUser: an agent without root listens in the user's own folder, and one of root, or without such a folder, in /run.
func TestAgentOfUser(t *testing.T) {
	own, others := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Chmod(own, 0o700), os.Chmod(others, 0o770)); err != nil {
		t.Fatal(err)
	}
	user := cmp.Or(os.Geteuid(), 1000)
	if err := errors.Join(os.Chown(own, user, -1), os.Chown(others, user, -1)); err != nil {
		t.Fatal(err)
	}
	const standard = "unix:/run/redlock/redlock.sock"
	for _, c := range []struct {
		uid           int
		dir           string
		want, because string
	}{
		{0, own, standard, ""},
		{user, own, "unix:" + own + "/redlock/redlock.sock", ""},
		{user, "", standard, ""},
		{user + 1, own, standard, "belongs to another user"},
		{user, others, standard, "others may write"},
		{user, "run", standard, "is not an absolute path"},
		{user, "/nonexistent/run", standard, "no such file"},
	} {
		if got, because := socketOf(c.uid, c.dir); got != c.want || !strings.Contains(because, c.because) || (because == "") != (c.because == "") {
			t.Errorf("%+v: %s, %q", c, got, because)
		}
	}
}

// TestAgentActivated gives the agent a socket as systemd does.
func TestAgentActivated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" agent --masters memory:// --listen unix:/nonexistent/s`, program)
	cmd.ExtraFiles = []*os.File{file}
	a := &agentProcess{t: t, path: path, cmd: cmd}
	if a.exited, err = redistest.StartProcess(cmd); err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_, _ = file.Close(), l.Close() // nobody else accepts what comes
	_ = a.hold(`{"key":"k"}`).Close()
	a.signal(syscall.SIGTERM)
	<-a.exited
}
