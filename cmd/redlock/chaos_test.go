//go:build unix

package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// work is a command that must not run twice at once: the kernel knows whether another one does, also one that was killed or stopped.
func work() int {
	busy, err := os.OpenFile("busy", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 1
	}
	note := func(name string) {
		if f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err == nil {
			_, _ = f.WriteString(os.Getenv("REDLOCK_FENCE") + "\n")
			_ = f.Close()
		}
	}
	if syscall.Flock(int(busy.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		note("overlaps")
		return 1
	}
	note("turns")
	time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
	if rand.IntN(8) == 0 {
		time.Sleep(time.Hour) // until it is ended
	}
	return 0
}

// TestChaos: 20 processes want one key of three masters, and run a command that must not run twice at once, while processes are killed
// and stopped for longer than their lease, and masters hang and die. CHAOS_TURNS is for a longer test.
func TestChaos(t *testing.T) {
	eachWay(t, func(t *testing.T, servers []*redistest.Server, run func(args ...string) *exec.Cmd) {
		turns := 12
		if n, err := strconv.Atoi(os.Getenv("CHAOS_TURNS")); err == nil {
			turns = n
		}
		dir := t.TempDir()
		executable, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		running := make(map[*exec.Cmd]bool)
		stop := make(chan struct{})
		var starters sync.WaitGroup
		for range 20 {
			starters.Go(func() {
				for {
					// Who isn't ended in time by TERM, as the machine is busy, has a second until another can have the lock.
					cmd := run("--ttl", "2s", "--kill-after", "1s", "--timeout", "200ms", "k", "--", executable)
					cmd.Env = append(cmd.Env, "REDLOCK_TEST_WORK=1")
					cmd.Dir = dir
					mu.Lock()
					select {
					case <-stop:
						mu.Unlock()
						return
					default:
					}
					if err := cmd.Start(); err != nil {
						t.Error(err)
						mu.Unlock()
						return
					}
					running[cmd] = true
					mu.Unlock()
					_ = cmd.Wait()
					mu.Lock()
					delete(running, cmd)
					mu.Unlock()
				}
			})
		}
		all := func(sig syscall.Signal) {
			mu.Lock()
			defer mu.Unlock()
			for cmd := range running {
				_ = cmd.Process.Signal(sig)
			}
		}
		end := sync.OnceFunc(func() {
			mu.Lock()
			close(stop)
			mu.Unlock()
			all(syscall.SIGKILL)
			starters.Wait()
		})
		defer end()
		count := func(name string) int {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.Count(string(text), "\n")
		}
		signal := func(sig syscall.Signal) {
			mu.Lock()
			defer mu.Unlock()
			for cmd := range running { // in any order
				_ = cmd.Process.Signal(sig)
				return
			}
		}
		killed, stopped, hung := 0, 0, 0
		eventually(t, "turns", func() bool {
			switch rand.IntN(4) {
			case 0:
				killed++
				signal(syscall.SIGKILL)
			case 1, 2:
				stopped++
				signal(syscall.SIGSTOP)
			case 3:
				hung++
				one := servers[1+rand.IntN(2)]
				one.Pause()
				time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
				one.Resume()
			}
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			if rand.IntN(12) == 0 { // who was stopped goes on, most of them after the end of their lease
				all(syscall.SIGCONT)
			}
			return count("turns") >= turns || count("overlaps") > 0
		})
		servers[0].Kill() // the others are a quorum
		before := count("turns")
		all(syscall.SIGKILL) // the one that has the lock may wait to be ended
		eventually(t, "turns without a master", func() bool { return count("turns") > before || count("overlaps") > 0 })
		end()
		if n := count("overlaps"); n > 0 {
			t.Errorf("%d times two ran at once", n)
		}
		t.Logf("%d turns; %d killed, %d stopped, %d times a master hung", count("turns"), killed, stopped, hung)
	})
}
