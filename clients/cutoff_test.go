package clients

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// Addr makes the agent on TCP what a Forwarder forwards to.
func (a *realAgent) Addr() string { return a.address }

// TestClientCutOff: a client behind a proxy that drops what is sent, and lets both sides believe that all is well, stops before another one
// has its lock, which its heartbeat frees.
func TestClientCutOff(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"python", "node", "ruby"} { // PHP does one thing at a time, and the shell has no TCP
		if !has(t, language) {
			continue
		}
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t)
			proxy := redistest.NewForwarder(t, a)
			w := a.start(t, language, "TTL=9 HEARTBEAT=4 WAIT=60 TOKEN=secret ADDRESS="+proxy.Addr(), "hold", "k")
			w.expect(t, "held ")
			proxy.Forget()
			other := a.lock(t, "k")
			had := time.Now().UnixMilli()
			last, _, _ := strings.Cut(w.expect(t, "lost "), " ")
			if n, err := strconv.ParseInt(last, 10, 64); err != nil || n > had {
				t.Errorf("it believed in its lock at %s, and another had it at %d", last, had)
			}
			_ = other.Unlock()
		})
	}
}

// TestClientPatience: a client waits for longer than its patience at an agent that lives, and not at one that hangs.
func TestClientPatience(t *testing.T) {
	t.Parallel()
	for _, language := range some(t) {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t)
			for patience := 1; ; patience *= 2 { // on a busy machine a live agent may say nothing for seconds
				lock := a.lock(t, "k")
				w := a.start(t, language, fmt.Sprint("PATIENCE=", patience), "hold", "k")
				time.Sleep(time.Duration(2*patience+1) * time.Second)
				_ = w.Cmd.Process.Signal(syscall.SIGSTOP) // what comes meanwhile is heard before time is counted
				time.Sleep(time.Duration(patience+1) * time.Second)
				_ = w.Cmd.Process.Signal(syscall.SIGCONT)
				time.Sleep(time.Second)
				_ = lock.Unlock()
				if line := w.expect(t, ""); strings.HasPrefix(line, "held ") {
					w.end(t)
					w.expect(t, "done")
					break
				} else if patience == 16 {
					t.Fatalf("%q was printed, want held", line)
				}
			}
			busy := a.lock(t, "k")
			defer func() { _ = busy.Unlock() }()
			w := a.start(t, language, "PATIENCE=1", "hold", "k")
			time.Sleep(time.Second) // it may wait by now; otherwise it finds an agent that hangs
			if err := a.process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			w.expectError(t)
		})
	}
}

// TestClientPulse: a client whose patience is short asks for no shorter pulse than the agent gives.
func TestClientPulse(t *testing.T) {
	t.Parallel()
	asked := regexp.MustCompile(`"pulse": ?"([^"]+)"`)
	for _, language := range []string{"node", "php", "python", "ruby", "shell", "bash"} {
		if !has(t, language) {
			continue
		}
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			pulses := make(chan string, 1)
			a := &realAgent{socket: serveSocket(t, func(c net.Conn) {
				defer func() { _ = c.Close() }()
				var request []byte
				for part := make([]byte, 4096); ; {
					n, err := c.Read(part)
					request = append(request, part[:n]...)
					if pulse := asked.FindSubmatch(request); pulse != nil {
						select {
						case pulses <- string(pulse[1]):
						default:
						}
						return
					}
					if err != nil {
						return
					}
				}
			})}
			options := "WAIT=0 PATIENCE=0.029"
			if folder(language) == "shell" { // curl takes longer to start
				dir := shIs(t, languages[language][0])
				if err := os.WriteFile(filepath.Join(dir, "sleep"), []byte("#!/bin/sh\nPATH=${PATH#*:} exec sleep 1\n"), 0o700); err != nil {
					t.Fatal(err)
				}
				options += " PATH=" + dir + ":" + os.Getenv("PATH")
			}
			for len(pulses) == 0 { // on a busy machine so short a patience may end before the request is sent
				a.start(t, language, options, "hold", "k").expect(t, "")
			}
			if pulse, err := time.ParseDuration(<-pulses); err != nil || pulse != 10*time.Millisecond {
				t.Errorf("a pulse of %v was asked for (%v), want 10ms", pulse, err)
			}
		})
	}
}
