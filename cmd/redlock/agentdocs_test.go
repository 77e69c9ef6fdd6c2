//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// shown returns the first block of docs/agent.md in this language.
func shown(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "```"+language+"\n")
	block, _, closed := strings.Cut(after, "```")
	if !ok || !closed {
		t.Fatalf("docs/agent.md has no block of %s", language)
	}
	return block
}

// TestAgentDocument runs the commands and the program that docs/agent.md shows, with masters and a socket of the test's own.
func TestAgentDocument(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	a := newAgent(t, servers)
	own := strings.NewReplacer(
		"/run/redlock/redlock.sock", a.path,
		"redis://10.0.0.1:6379,redis://10.0.0.2:6379,redis://10.0.0.3:6379", strings.Join(redistest.URLs(servers), ","))
	lines := strings.Split(strings.TrimSpace(own.Replace(shown(t, "sh"))), "\n")
	if len(lines) != 2 {
		t.Fatalf("docs/agent.md shows %q, want the agent and curl", lines)
	}
	words := strings.Fields(lines[0])
	if len(words) < 2 || words[0] != "redlock" || words[1] != "agent" {
		t.Fatalf("docs/agent.md shows %q, want redlock agent", lines[0])
	}
	a.args = words[2:]
	a.start()
	t.Run("curl", func(t *testing.T) {
		if _, err := exec.LookPath("curl"); err != nil {
			t.Skip(err)
		}
		curl := exec.Command("sh", "-c", "exec "+lines[1])
		out, err := curl.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		start(t, curl)
		first, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.HasPrefix(first, `{"fence":`) || !strings.Contains(first, `"mark":0,"valid_ms":`) {
			t.Errorf("curl printed %q, %v", first, err)
		}
		if answer := a.lock(`{"key":"order:42","try":true}`); answer == nil || answer.StatusCode != 423 || answer.Header.Get("Retry-After") == "" {
			t.Errorf("another one: %v, want 423 with Retry-After", answer)
		}
		_ = curl.Process.Kill()
	})
	t.Run("python", func(t *testing.T) {
		python, err := exec.LookPath("python3")
		if err != nil {
			t.Skip(err)
		}
		clients, err := filepath.Abs("../../clients/python")
		if err != nil {
			t.Fatal(err)
		}
		program := "def pay(fence):\n    print('paid', fence > 0)\n\n" + own.Replace(shown(t, "python"))
		cmd := exec.Command(python, "-B", "-c", strings.Replace(program, "wait=2)", "wait=60)", 1)) // a busy machine
		cmd.Env = append(os.Environ(), "PYTHONPATH="+clients)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "paid True" {
			t.Errorf("%v: %s", err, out)
		}
	})
}
