package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// screen is a terminal, and what is on it.
type screen struct {
	keyboard *os.File
	mu       sync.Mutex
	text     strings.Builder
}

// onScreen starts a command on a terminal of its own.
func onScreen(t *testing.T, cmd *exec.Cmd) *screen {
	t.Helper()
	s := new(screen)
	var err error
	if s.keyboard, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(s.keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(s.keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	start(t, cmd)
	_ = file.Close()
	go func() {
		var buffer [4096]byte
		for {
			n, err := s.keyboard.Read(buffer[:])
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil { // all that have it as their terminal are gone
				return
			}
		}
	}()
	return s
}

func (s *screen) requireShows(t *testing.T, pattern string) {
	t.Helper()
	shown := ""
	defer func() {
		if t.Failed() {
			t.Logf("the screen shows %q", shown)
		}
	}()
	eventually(t, pattern, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		shown = s.text.String()
		return regexp.MustCompile(pattern).MatchString(shown)
	})
}

// TestTerminal: a person is told who holds the lock, once, and can talk to the command; --try says why it does nothing.
func TestTerminal(t *testing.T) {
	eachWay(t, func(t *testing.T, _ []*redistest.Server, run func(args ...string) *exec.Cmd) {
		dir := t.TempDir()
		holder := run("k", "--", "sh", "-c", "echo $REDLOCK_FENCE >fence; read _")
		holder.Dir = dir
		stdin, err := holder.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		start(t, holder)
		fence := ""
		eventually(t, "the holder runs", func() bool { fence = contents(filepath.Join(dir, "fence")); return fence != "" })
		onScreen(t, run("--try", "k", "--", "true")).requireShows(t, `(?m)^redlock: another has the lock on k\r\n$`)

		waiter := run("k", "--", "sh", "-c", "read name; echo hello $name; (sleep 1000 & echo $! >left) >/dev/null 2>&1")
		waiter.Dir = dir
		terminal := onScreen(t, waiter)
		terminal.requireShows(t, `(?m)^redlock: waiting for the lock on k, which \S+/\d+ holds( \(fence `+fence+`\))?\r\n$`) // the masters forget the fence for a moment
		_ = stdin.Close()
		if _, err := terminal.keyboard.WriteString("world\n"); err != nil {
			t.Fatal(err)
		}
		terminal.requireShows(t, `hello world\r\nredlock: the command has ended, and has left processes that still run`)
		_ = syscall.Kill(pidIn(t, filepath.Join(dir, "left")), syscall.SIGKILL)
		if err := waiter.Wait(); err != nil {
			t.Error(err)
		}
		terminal.mu.Lock()
		defer terminal.mu.Unlock()
		if n := strings.Count(terminal.text.String(), "waiting for"); n != 1 {
			t.Errorf("it was told %d times what it waits for", n)
		}
	})
}
