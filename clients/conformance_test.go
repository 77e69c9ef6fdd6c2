// Package clients has nothing but the tests of the clients in other languages, which are files to be copied.
package clients

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// conformance is a case of cases.json, which the clients of all languages run: worker_test.* in the folder of each is its driver.
type conformance struct {
	Name    string
	Options string   // of the worker: OTHER and SILENT are sockets of a web server and of nobody who answers
	Args    []string // KEY is a key of this case and language alone
	TCP     bool     // over the address with a token
	Poor    bool     // on an agent whose masters are down
	Leaves  bool     // whether its agent ends while it waits
	Returns bool     // and another one takes its place, but not at once
	Dies    bool     // as Leaves, without a word, and another one takes its place at once
	Stop    bool     // whether it is told to end once it has printed its first line
	Forgets bool     // and most masters are paused before that
	Prints  []string // patterns of whole lines
	Next    []string // the same after the first time; nil: Prints
	Times   int      // how often it runs; 0: once
	Not     []string // languages whose clients can't
}

// TestConformance runs the cases of cases.json in each language, with -short in two. After each run the key is free.
func TestConformance(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []conformance
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	a, poor, leaving, forgetful := startAgent(t), startAgent(t), startAgent(t), startAgent(t)
	for _, s := range poor.servers[1:] {
		s.Kill()
	}
	busy, err := a.locker.Lock(t.Context(), "busy")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Unlock() }()
	places := strings.NewReplacer("OTHER", otherServer(t), "SILENT", silentServer(t))
	for i, c := range cases {
		for _, language := range some(t) {
			if slices.Contains(c.Not, folder(language)) {
				continue
			}
			t.Run(language+"/"+c.Name, func(t *testing.T) {
				on, options := a, places.Replace(c.Options)
				pause, resume := func() {}, func() {}
				if c.TCP {
					options = "TOKEN=secret " + options + " ADDRESS=" + a.address
				}
				if c.Poor {
					on = poor
				}
				if c.Forgets {
					on, pause, resume = forgetful, forgetful.pause, forgetful.resume
				}
				defer resume()
				key := fmt.Sprint(language, i)
				leave := func() {}
				if c.Leaves || c.Dies {
					on, leave = leaving, leaving.leave(t, key, c)
				}
				var args []string
				for _, arg := range c.Args {
					args = append(args, strings.ReplaceAll(arg, "KEY", key))
				}
				prints := c.Prints
				for range max(c.Times, 1) {
					w := on.start(t, language, options, args...)
					leave()
					for j, pattern := range prints {
						line := w.expect(t, "")
						if !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(line) {
							t.Fatalf("%q was printed, want %q", line, pattern)
						}
						if j == 0 && c.Stop {
							pause()
							w.end(t)
						}
					}
					if c.Next != nil {
						prints = c.Next
					}
				}
				resume()
				if key := args[len(args)-1]; !c.Poor && key != "busy" {
					_ = on.lock(t, key).Unlock()
				}
			})
		}
	}
}

// lock takes the lock on a key, which is to be free soon.
func (a *realAgent) lock(t *testing.T, key string) *redlock.Lock {
	t.Helper()
	lock, err := a.locker.Lock(t.Context(), key, redlock.WithWait(time.Minute))
	if err != nil {
		t.Fatalf("the key %s is not free: %v", key, err)
	}
	return lock
}

// pause stops most masters.
func (a *realAgent) pause() {
	for _, s := range a.servers[1:] {
		s.Pause()
	}
}

// resume has them go on.
func (a *realAgent) resume() {
	for _, s := range a.servers[1:] {
		s.Resume()
	}
}

// leave holds the key, and returns a function that ends the agent once a client waits for it. If another one is to take the place of
// this agent, nobody listens for longer than clients pause, unless it dies; then the key is free.
func (a *realAgent) leave(t *testing.T, key string, c conformance) func() {
	t.Helper()
	if !a.listens() { // it has left before
		a.serve(t)
	}
	busy := a.lock(t, key)
	return func() {
		defer func() { _ = busy.Unlock() }()
		for a.waiting(t) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if c.Dies {
			_ = a.process.Kill()
		} else if err := a.process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		for a.listens() {
			time.Sleep(10 * time.Millisecond)
		}
		if c.Returns {
			time.Sleep(2 * time.Second)
		}
		if c.Returns || c.Dies {
			a.serve(t)
		}
	}
}

func (a *realAgent) listens() bool {
	c, err := net.Dial("unix", a.socket)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// otherServer returns the socket of a server that is no agent.
func otherServer(t *testing.T) string {
	t.Helper()
	return serveSocket(t, answering("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n\r\n{}\n"))
}

// answering serves connections with one response each.
func answering(response string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = fmt.Fprint(c, response)
		_ = c.Close()
	}
}

// silentServer returns the socket of a server that says nothing.
func silentServer(t *testing.T) string {
	t.Helper()
	return serveSocket(t, func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
}

func serveSocket(t *testing.T, serve func(net.Conn)) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return path
}
