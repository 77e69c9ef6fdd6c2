//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestAgentHangup: at HUP an agent goes on, and reads its password again, or says why it can't.
func TestAgentHangup(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	server := servers[0].Client() // whose connection stays authenticated
	require := func(args ...any) {
		t.Helper()
		if err := server.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	require("CONFIG", "SET", "requirepass", "former")
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("former")
	log := new(redistest.Log)
	operators := "unix:" + filepath.Join(t.TempDir(), "operators")
	a := newAgent(t, servers, "--password-file", file, "--operators", operators)
	a.log = log
	a.start()
	held := a.hold(`{"key":"k"}`)
	write("")
	a.signal(syscall.SIGHUP)
	eventually(t, "a bad file is named", func() bool {
		return strings.Contains(log.String(), "level=ERROR") && strings.Contains(log.String(), file+": want one line")
	})
	write("new")
	a.signal(syscall.SIGHUP)
	eventually(t, "the file was read", func() bool { return strings.Contains(log.String(), "were read again") })
	require("CONFIG", "SET", "requirepass", "new")
	require("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	eventually(t, "the agent is connected again", func() bool { return strings.Contains(log.String(), "master available again") })
	_, _ = io.WriteString(held, "0\r\n\r\n")
	_ = a.hold(`{"key":"k"}`).Close()
	examined, stderr, _ := finish(t, exec.Command(program, "doctor", "--agent", operators, "--patience", "1m")) // with the agent's password
	if !strings.Contains(examined, "1 of 1 master would grant locks now") {
		t.Errorf("doctor: %s%s", examined, stderr)
	}
	if text := log.String(); strings.Contains(text, "former") || strings.Contains(text, "=new") {
		t.Errorf("the log has a password: %s", text)
	}
}
