package clients

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestAgentDocument runs the commands and the programs that docs/agent.md shows, with masters and a socket of the test's own.
func TestAgentDocument(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	masters, socket := strings.Join(redistest.URLs(redistest.Start(t, 3)), ","), filepath.Join(t.TempDir(), "made", "s") // as /run/redlock is
	own := strings.NewReplacer("/run/redlock/redlock.sock", socket, "redis://10.0.0.1:6379,redis://10.0.0.2:6379,redis://10.0.0.3:6379", masters,
		"wait=2", "wait=60", "wait: 2", "wait: 60", "-w 2", "-w 60") // a busy machine
	shown := func(language string) string {
		_, after, ok := strings.Cut(own.Replace(string(document)), "```"+language+"\n")
		block, _, closed := strings.Cut(after, "```")
		if !ok || !closed {
			t.Fatalf("docs/agent.md has no block of %s", language)
		}
		return block
	}
	lines := strings.Split(strings.TrimSpace(shown("sh")), "\n")
	words := strings.Fields(lines[0])
	if len(lines) != 2 || len(words) < 2 || words[0] != "redlock" || words[1] != "agent" {
		t.Fatalf("docs/agent.md shows %q, want redlock agent and curl", lines)
	}
	env := append(os.Environ(), "REDLOCK_RESTART_GUARD=off", "REDLOCK_TIMEOUT=1s")
	serveAgent(t, "unix", socket, exec.Command(program, append(words[1:], "--listen", "unix:"+socket)...), env)
	if has(t, "shell") { // which needs curl
		t.Run("curl", func(t *testing.T) { holdsWithCurl(t, lines[1]) })
	}
	for language, c := range map[string]struct{ block, file, before, after string }{
		"python": {"python", "main.py", "def pay(fence):\n    print('paid', fence)\n\n", ""},
		"php":    {"php", "main.php", "<?php\nfunction pay($fence) { echo 'paid ', $fence; }\n", ""},
		"node":   {"js", "main.mjs", "", "function pay(fence) { console.log('paid', fence); }\n"},
		"ruby":   {"ruby", "main.rb", "def pay(fence:) = puts(\"paid #{fence}\")\n", ""},
		"shell":  {"bash", "main.sh", "printf '#!/bin/sh\\necho paid $REDLOCK_FENCE\\n' >pay\nchmod +x pay\n", ""},
	} {
		t.Run(language, func(t *testing.T) {
			if !has(t, language) {
				t.SkipNow()
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(language)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.before+shown(c.block)+c.after), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(languages[language][0], c.file)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "paid 1") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// holdsWithCurl requires that a command of curl holds the lock.
func holdsWithCurl(t *testing.T, command string) {
	curl := exec.Command("sh", "-c", "exec "+command)
	out, err := curl.StdoutPipe()
	if err == nil {
		err = curl.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = curl.Process.Kill(); _ = curl.Wait() }()
	first, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(first, `{"fence":`) || !strings.Contains(first, `"mark":0,"valid_ms":`) {
		t.Errorf("curl printed %q, %v", first, err)
	}
	again := strings.Replace(strings.Replace(command, "curl -N", "curl -is", 1), `"}`, `","try":true}`, 1)
	if response, err := exec.Command("sh", "-c", again).Output(); err != nil || !strings.HasPrefix(string(response), "HTTP/1.1 423 ") || !strings.Contains(string(response), "\r\nRetry-After: ") {
		t.Errorf("another one: %s, %v, want 423 with Retry-After", response, err)
	}
}
