//go:build unix

package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestAgentReplaced: a second agent takes the place of the first at once, which ends its waits, and serves its holder to the end. A run that
// waits goes on with the second.
func TestAgentReplaced(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	first := startAgent(t, servers, "--grace", "0s")
	holder := first.hold(`{"key":"k"}`)
	waits := make(chan *http.Response, 1)
	go func() { waits <- first.lock(`{"key":"k"}`) }()
	run := redlockRun(servers, "--agent", "unix:"+first.path, "--wait", "10m", "k", "--", "true")
	text := logged(t, run)
	start(t, run)
	eventually(t, "two wait", func() bool { return first.waiting() == 2 })
	second := newAgent(t, servers, "--replace")
	second.path = first.path
	second.start()
	requireStopping(t, "who waited", <-waits)
	eventually(t, "the run waits again", func() bool { return second.waiting() == 1 })
	if response := second.lock(`{"key":"k","try":true}`); response == nil || response.StatusCode != http.StatusLocked {
		t.Errorf("the lock of the first agent: %v", response)
	}
	select {
	case <-first.exited:
		t.Error("the first agent ended while a client held a lock")
	default:
	}
	_ = holder.Close()
	first.requireExit(0)
	if err := run.Wait(); err != nil {
		t.Errorf("the run: %v, %s", err, text())
	}
}

// TestAgentStartedAnew: a run whose agent ends while it waits goes on with the next one at its socket, although nobody listens there for a
// while.
func TestAgentStartedAnew(t *testing.T) {
	t.Parallel()
	for _, wait := range [][]string{nil, {"--wait", "10m"}} {
		servers := redistest.Start(t, 3)
		holder := startAgent(t, servers).hold(`{"key":"k"}`)
		first := startAgent(t, servers)
		run := redlockRun(servers, append(wait, "--agent", "unix:"+first.path, "k", "--", "true")...)
		text := logged(t, run)
		start(t, run)
		eventually(t, "one waits", func() bool { return first.waiting() == 1 })
		first.signal(syscall.SIGTERM)
		first.requireExit(0)
		time.Sleep(time.Second) // it asks meanwhile
		second := newAgent(t, servers)
		second.path = first.path
		second.start()
		_ = holder.Close()
		if err := run.Wait(); err != nil {
			t.Errorf("the run: %v, %s", err, text())
		}
	}
}

// TestAgentLeavesNothing: an agent that can't start leaves no socket, nor does any take the place of a file.
func TestAgentLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"there is something else than a socket": {"--masters", "memory://", "--replace", "--listen", "unix:" + filepath.Join(dir, "a"), "--listen", "unix:" + file},
		"--listen nonsense":                     {"--masters", "memory://", "--listen", "unix:" + filepath.Join(dir, "b"), "--listen", "nonsense"},
		"no masters":                            {"--listen", "unix:" + filepath.Join(dir, "c")},
		"needs a token":                         {"--masters", "memory://", "--listen", "unix:" + filepath.Join(dir, "d"), "--listen", "127.0.0.1:0"},
		"--operators nonsense":                  {"--masters", "memory://", "--listen", "unix:" + filepath.Join(dir, "e"), "--operators", "nonsense"},
	} {
		cmd := exec.Command(program, append([]string{"agent"}, args...)...)
		cmd.Env = append(os.Environ(), "REDLOCK_AGENT_TOKEN=", "REDLOCK_MASTERS=")
		if _, text, code := finish(t, cmd); code != exitError || !strings.Contains(text, want) {
			t.Errorf("%q: exit code %d, %s, want %q", args, code, text, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("there are %q", left)
	}
	if text, _ := os.ReadFile(file); string(text) != "data" {
		t.Errorf("the file has %q", text)
	}
}

// TestAgentOperators: who may lock may neither list keys nor release locks of others. That is for a socket of its own, and without one the
// refusal says so.
func TestAgentOperators(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	operators := filepath.Join(t.TempDir(), "operators")
	a := startAgent(t, servers, "--operators", "unix:"+operators)
	h := a.hold(`{"key":"k","ttl":"1m"}`)
	defer func() { _ = h.Close() }()
	for path, method := range map[string]string{"/console/locks": http.MethodGet, "/console/locks?prefix=k": http.MethodGet, "/console/processes": http.MethodGet, "/console/": http.MethodGet,
		"/console/locks?key=k&fence=1": http.MethodDelete, "/console/results?key=k": http.MethodDelete, "/console/locks?key=": http.MethodGet, "/console//locks": http.MethodGet} {
		if status, text := ask(t, a, method, path); status != http.StatusForbidden && status != http.StatusMovedPermanently && status != http.StatusTemporaryRedirect || status == http.StatusForbidden && !strings.Contains(text, "--operators") {
			t.Errorf("%s %s: %d %s", method, path, status, text)
		}
	}
	for _, path := range []string{"/console/masters", "/console/locks?key=k", "/metrics"} {
		if status, text := ask(t, a, http.MethodGet, path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if info, err := os.Stat(operators); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	of := &agentProcess{t: t, path: operators}
	if status, text := ask(t, of, http.MethodGet, "/console/locks"); status != http.StatusOK || !strings.Contains(text, `"k"`) {
		t.Errorf("%d %s", status, text)
	}
	if status, text := ask(t, of, http.MethodGet, "/v1/lock"); status != http.StatusNotFound {
		t.Errorf("the operators' socket gives locks: %d %s", status, text)
	}
}

func ask(t *testing.T, a *agentProcess, method, path string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://redlock"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := a.client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
