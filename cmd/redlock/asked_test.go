//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// said is what a command exits with, and a part of what it prints.
type said struct {
	code int
	text string
}

// TestWhoIsAsked runs each command of operators against whatever may be there.
func TestWhoIsAsked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	operators := filepath.Join(dir, "operators")
	a := newAgent(t, nil, "--masters", "memory://", "--operators", "unix:"+operators)
	a.start()
	h := a.hold(`{"key":"k","ttl":"1m","label":"nightly"}`)
	t.Cleanup(func() { _ = h.Close() })
	var held console.Locks
	_, text := ask(t, &agentProcess{t: t, path: operators}, http.MethodGet, "/console/locks")
	if err := json.Unmarshal([]byte(text), &held); err != nil || len(held.Locks) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	fence, hash := fmt.Sprint(held.Locks[0].Fence), lockname.Hash("k")

	port := fmt.Sprint("127.0.0.1:", redistest.FreePort(t))
	withToken := newAgent(t, nil, "--masters", "memory://", "--listen", port)
	withToken.env = append(withToken.env, "REDLOCK_AGENT_TOKEN=secret")
	withToken.start()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	caddy := http.NewServeMux()
	caddy.Handle("/redlock/", http.StripPrefix("/redlock", console.New(func() []*redlock.Locker { return []*redlock.Locker{locker} })))
	admin := serveAt(t, filepath.Join(dir, "admin"), caddy)
	server := redistest.Start(t, 1)[0]

	names := []string{"masters", "locks", "inspect k", "inspect free", "inspect --hash " + hash, "inspect --hash 000000000000", "inspect --hash k", "release k --fence 7", "forget k", "doctor --patience 1m", "ready", "ready --alive"}
	all := func(code int, text string) (same []said) {
		for range names {
			same = append(same, said{code, text})
		}
		return same
	}
	const noKeys = "this command has no keys itself: ask an agent, such as --agent unix:/run/redlock-operators/redlock.sock, or type caddy redlock"
	wrong := said{1, "want a key_hash of a log, such as " + lockname.Hash("order:42")}
	replace := func(same []said, name string, by said) []said {
		for i := range names {
			if names[i] == name {
				same[i] = by
			}
		}
		return same
	}
	elsewhere := func(code int, text string) []said { return replace(all(code, text), "inspect --hash k", wrong) }
	for who, c := range map[string]struct {
		args []string
		env  []string
		want []said
	}{
		"its own masters": {nil, []string{"REDLOCK_MASTERS=" + server.URL(), "REDLOCK_RESTART_GUARD=off", "REDLOCK_TIMEOUT=5s"}, []said{
			{0, "1 of 1 master available, 1 needed: locks can be taken; 0 held"}, {1, noKeys}, {3, "its key_hash in logs is " + hash}, {3, "Nobody holds the key"},
			{1, noKeys}, {1, noKeys}, wrong, {3, "nobody holds the key"}, {3, "no master remembers anything"}, {2, "1 of 1 master would grant locks now"}, {1, "no agent: want --agent"}, {1, "no agent: want --agent"}}},
		"nobody is named": {nil, []string{"REDLOCK_MASTERS="}, []said{
			{1, "nobody to ask: want --agent"}, {1, noKeys}, {1, "nobody to ask"}, {1, "nobody to ask"}, {1, "nobody to ask"}, {1, "nobody to ask"}, wrong, {1, "nobody to ask"}, {1, "nobody to ask"}, {1, "nobody to ask"}, {1, "no agent: want"}, {1, "no agent: want"}}},
		"the socket for operators": {[]string{"--agent", "unix:" + operators}, nil, []said{
			{0, "locks can be taken; 1 held, 0 waiting"}, {0, "k    nightly  held "}, {0, "hash    " + hash}, {3, "Nobody holds the key"},
			{0, "key     k\n"}, {3, "neither holds a key with this hash nor waits for one"}, wrong, {3, "with the fencing token " + fence}, {3, "no master remembers anything"}, {0, "locks are kept in the memory of the process"},
			{1, "this is its socket for operators and not for clients"}, {1, "this is its socket for operators"}}},
		"the socket for operators, by the environment": {nil, []string{"REDLOCK_AGENT=unix:" + operators, "REDLOCK_MASTERS=redis://127.0.0.1:1"}, []said{
			{0, "1 held, 0 waiting"}, {0, "1 held, 0 waiting"}, {0, "holder "}, {3, "Nobody holds the key"}, {0, "key     k\n"}, {3, "neither holds"}, wrong, {3, fence}, {3, "no master remembers anything"}, {0, "1 of 1 master would grant"}, {1, "for operators"}, {1, "for operators"}}},
		"the socket for clients": {[]string{"--agent", "unix:" + a.path}, nil, []said{
			{0, "1 held, 0 waiting"}, {1, "is for clients, who see only masters and inspect KEY: ask at the socket of the agent's --operators"}, {0, "hash    " + hash}, {3, "Nobody holds the key"},
			{1, "is for clients"}, {1, "is for clients"}, wrong, {1, "is for clients"}, {1, "is for clients"}, {1, "is for clients"}, {0, "ready: it gives locks\n"}, {0, "alive: it answers\n"}}},
		"a TCP address, without the token": {[]string{"--agent", port}, []string{"REDLOCK_AGENT_TOKEN="},
			replace(replace(elsewhere(1, "wants its token: --token-file or REDLOCK_AGENT_TOKEN"), "ready", said{0, "ready"}), "ready --alive", said{0, "alive"})},
		"a TCP address": {[]string{"--agent", "tcp:" + port}, []string{"REDLOCK_AGENT_TOKEN=secret"}, []said{
			{0, "0 held, 0 waiting"}, {1, "is for clients"}, {3, "Nobody holds"}, {3, "Nobody holds"}, {1, "is for clients"}, {1, "is for clients"}, wrong, {1, "is for clients"}, {1, "is for clients"}, {1, "is for clients"}, {0, "ready"}, {0, "alive"}}},
		"a Caddy":                     {[]string{"--agent", "unix:" + admin}, nil, elsewhere(1, "something else than an agent answers at unix:"+admin+" (status 404): for a Caddy, type caddy redlock")},
		"a Redis server":              {[]string{"--agent", server.Addr()}, nil, elsewhere(1, "something else than an agent answers at "+server.Addr())},
		"no socket":                   {[]string{"--agent", "unix:" + dir + "/none"}, nil, elsewhere(1, "no agent answers at unix:"+dir+"/none: is it running, with this address in its --operators or --listen?")},
		"a socket that was left":      {[]string{"--agent", "unix:" + left(t, filepath.Join(dir, "left"))}, nil, elsewhere(1, "no agent answers at unix:"+dir+"/left: is it running")},
		"an address without a port":   {[]string{"--agent", "localhost"}, nil, elsewhere(1, "want unix:/path of an agent's socket, or host:port")},
		"an agent and masters, too":   {[]string{"--agent", "unix:" + operators, "--masters", server.URL()}, nil, replace(replace(replace(elsewhere(1, "--agent and --masters: want one of them"), "locks", said{1, "unknown flag: --masters"}), "ready", said{1, "unknown flag"}), "ready --alive", said{1, "unknown flag"})},
		"a socket of somebody else's": {[]string{"--agent", "unix:" + closed(t, filepath.Join(dir, "closed"))}, nil, elsewhere(1, "the agent's --socket-group and --socket-mode say who may open the socket; that of --operators is for its user and root")},
	} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			for i, want := range c.want {
				args := strings.Fields(names[i])
				whole := append(append([]string{program}, args...), c.args...)
				if who == "a socket of somebody else's" {
					whole = withoutPrivileges(whole)
				}
				cmd := exec.Command(whole[0], whole[1:]...)
				cmd.Env = append(os.Environ(), c.env...)
				if who == "its own masters" { // which may be late
					if text := operate(t, cmd.Env, want.code, args...); !strings.Contains(inWords(text), inWords(want.text)) {
						t.Errorf("redlock %s: want %q:\n%s", names[i], want.text, text)
					}
				} else if stdout, stderr, code := finish(t, cmd); code != want.code || !strings.Contains(inWords(stdout+stderr), inWords(want.text)) {
					t.Errorf("redlock %s: exit code %d, want %d and %q:\n%s%s", names[i], code, want.code, want.text, stdout, stderr)
				}
			}
		})
	}
}

// inWords leaves out where lines end.
func inWords(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestReleaseAtAgent: what operators do at an agent, its client learns.
func TestReleaseAtAgent(t *testing.T) {
	t.Parallel()
	operators := filepath.Join(t.TempDir(), "operators")
	a := newAgent(t, nil, "--masters", "memory://", "--operators", "unix:"+operators)
	a.start()
	env := append(os.Environ(), "REDLOCK_AGENT=unix:"+operators)
	run := redlockRun(nil, "--agent", "unix:"+a.path, "k", "--", "sh", "-c", "echo $REDLOCK_FENCE; exec sleep 1000")
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, run)
	var fence string
	if _, err := fmt.Fscan(out, &fence); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fence is known", func() bool { return strings.Contains(operate(t, env, 0, "inspect", "k"), "fence   "+fence) })
	if text := operate(t, env, 0, "release", "k", "--fence", fence); !strings.Contains(text, "released k, which had the fencing token "+fence) {
		t.Error(text)
	}
	if _ = run.Wait(); run.ProcessState.ExitCode() != codeLost {
		t.Errorf("the holder: %v", run.ProcessState)
	}
	if _, stderr, code := finish(t, redlockRun(nil, "--agent", "unix:"+a.path, "--once-per", "1h", "k", "--", "true")); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	operate(t, env, 0, "forget", "k")
}

// TestNotReady: an agent without masters lives, and gives no locks.
func TestNotReady(t *testing.T) {
	t.Parallel()
	a := newAgent(t, nil, "--masters", "unix://"+filepath.Join(t.TempDir(), "none"))
	a.cmd = exec.Command(program, append([]string{"agent", "--listen", "unix:" + a.path}, a.args...)...)
	var err error
	if a.exited, err = redistest.StartProcess(a.cmd); err != nil {
		t.Fatal(err)
	}
	ready := func(args ...string) (string, int) {
		stdout, stderr, code := finish(t, exec.Command(program, append([]string{"ready", "--agent", "unix:" + a.path}, args...)...))
		return stdout + stderr, code
	}
	eventually(t, "it answers", func() bool { _, code := ready("--alive"); return code == 0 })
	if text, code := ready(); code != codeNotReady || !strings.Contains(text, "no lock can be taken now: 0 of 1 masters would grant one, and 1 are needed") {
		t.Errorf("exit code %d: %s", code, text)
	}
}

// TestMayNotOpen: redlock run says who may open the agent's socket.
func TestMayNotOpen(t *testing.T) {
	t.Parallel()
	args := withoutPrivileges([]string{program, "run", "--agent", "unix:" + closed(t, filepath.Join(t.TempDir(), "closed")), "k", "--", "true"})
	if _, stderr, code := finish(t, exec.Command(args[0], args[1:]...)); code != codeNoQuorum || !strings.Contains(stderr, "permission denied: the agent's --socket-group and --socket-mode say who may open the socket") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// withoutPrivileges makes a command obey the rights of files even as root.
func withoutPrivileges(args []string) []string {
	if os.Geteuid() != 0 {
		return args
	}
	return append([]string{"setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override,-dac_read_search"}, args...)
}

func serveAt(t *testing.T, path string, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return path
}

// left leaves a socket on which nobody listens any more.
func left(t *testing.T, path string) string {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	return path
}

// closed returns a socket that nobody may open.
func closed(t *testing.T, path string) string {
	t.Helper()
	serveAt(t, path, http.NotFoundHandler())
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	return path
}
