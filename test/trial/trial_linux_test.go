// Package trial does what README says, as somebody would who has just found it: in a bare Debian with curl and Go.
package trial

import (
	"bytes"
	"cmp"
	"context"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A root is Debian's base with what a trial adds, which is kept in memory.
type root struct {
	dir string
	env []string
}

// newRoot needs the namespaces that run.sh makes, whose end undoes the mounts.
func newRoot(t *testing.T, base string) root {
	t.Helper()
	memory := t.TempDir()
	r := root{dir: memory + "/root"}
	mount := func(source, target, kind string, flags uintptr, options string) {
		t.Helper()
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount(source, target, kind, flags, options); err != nil {
			t.Fatalf("mount %s %s: %v", source, target, err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) })
	}
	mount("tmpfs", memory, "tmpfs", 0, "mode=755")
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(memory, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount("overlay", r.dir, "overlay", 0, "lowerdir="+base+",upperdir="+memory+"/upper,workdir="+memory+"/work")
	mount("proc", r.dir+"/proc", "proc", 0, "")
	mount("/dev", r.dir+"/dev", "", syscall.MS_BIND|syscall.MS_REC, "")
	goroot, modules, cache := os.Getenv("GOROOT"), os.Getenv("GOMODCACHE"), os.Getenv("GOCACHE")
	for source, target := range map[string]string{goroot: "/usr/local/go", modules: modules} {
		mount(source, r.dir+target, "", syscall.MS_BIND, "")
		mount("", r.dir+target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	mount(cache, r.dir+cache, "", syscall.MS_BIND, "")
	r.write(t, "/etc/hosts", "127.0.0.1 localhost\n", 0o644) // as the engine of a container does
	r.env = []string{
		"HOME=/root", "PATH=/usr/local/go/bin:/root/go/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"GOMODCACHE=" + modules, "GOCACHE=" + cache, // else minutes, and gigabytes
		"GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local", // there is no network
		"GOFLAGS=-buildvcs=false", // the clone has no .git
	}
	return r
}

// A terminal is a shell in the root, with all that it has printed.
type terminal struct {
	*exec.Cmd
	mutex sync.Mutex
	text  bytes.Buffer
	ended chan struct{}
	err   error // once it has ended
}

func (c *terminal) Write(p []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.Write(p)
}

func (c *terminal) said() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.String()
}

// start types commands, which end with the test.
func (r root) start(t *testing.T, dir, commands string) *terminal {
	t.Helper()
	c := &terminal{ended: make(chan struct{}), Cmd: exec.CommandContext(t.Context(), "/bin/sh", "-euc", commands)}
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, r.env, c, c
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir, Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.ended)
		c.err = c.Wait()
	}()
	return c
}

// run types commands that end.
func (r root) run(t *testing.T, dir, commands string) string {
	t.Helper()
	c := r.start(t, dir, commands)
	if <-c.ended; c.err != nil {
		t.Fatalf("%v after\n%s\n%s", c.err, commands, c.said())
	}
	return c.said()
}

// end sends what the key ^C does, and waits.
func (c *terminal) end() {
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGINT)
	<-c.ended
}

// await waits until a terminal has printed a text.
func (c *terminal) await(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(c.said(), text) {
		select {
		case <-c.ended:
			t.Fatalf("%v, and no %q in\n%s", c.err, text, c.said())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func measure(t *testing.T, start time.Time, commands int, printed string) {
	t.Helper()
	t.Logf("%d commands, %.1f s, %d lines:\n%s", commands, time.Since(start).Seconds(), strings.Count(printed, "\n"), printed)
	if commands > 3 {
		t.Errorf("%d commands to the first lock", commands)
	}
}

// block returns a code block of a page.
func block(t *testing.T, page, language, within string) string {
	t.Helper()
	for _, found := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		if strings.Contains(found[1], within) {
			return found[1]
		}
	}
	t.Fatalf("the page has no %s with %s", language, within)
	return ""
}

// line returns the line of a block that begins so, without its comment.
func line(t *testing.T, text, begin string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) {
			line, _, _ = strings.Cut(line, "   #")
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("the page has no %s", begin)
	return ""
}

const module = "github.com/caddy-redlock/caddy-redlock"

func TestTrial(t *testing.T) {
	base := os.Getenv("BASE")
	if base == "" {
		t.Skip("run by make trial, in namespaces")
	}
	clone, err := os.Getwd() // in which run.sh starts this
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(clone, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	readme := string(text)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT) // what a shell has started with & ignores it, and so would all programs below
	r := newRoot(t, base)
	tried := block(t, readme, "sh", "go run ./cmd/caddy ")
	used := block(t, readme, "sh", "redlock run ")
	r.startMasters(t, regexp.MustCompile(`10\.0\.0\.\d+`).FindAllString(line(t, used, "export REDLOCK_MASTERS="), -1))
	r.copyClone(t, clone)
	for _, missing := range []string{"redis-server", "gcc", "git", "make", "redlock"} {
		if out := r.run(t, "/", "command -v "+missing+" || true"); out != "" {
			t.Fatalf("the root isn't bare: %s", out)
		}
	}
	subtest := func(name string, test func(t *testing.T)) {
		if !t.Run(name, test) {
			t.FailNow()
		}
	}
	subtest("Caddy", func(t *testing.T) {
		start := time.Now()
		curls := block(t, readme, "sh", "/orders/42/pay")
		caddy := r.start(t, "/clone", line(t, tried, "go run "))
		defer caddy.end()
		caddy.await(t, "serving initial configuration")
		responses := r.run(t, "/", curls+"wait\n")
		if !strings.Contains(responses, " 200\n") || !strings.Contains(responses, " 423\n") {
			t.Errorf("two payments got\n%s", responses)
		}
		measure(t, start, 1+strings.Count(curls, "\n"), caddy.said()+responses)
	})
	subtest("Go", func(t *testing.T) {
		start := time.Now()
		get := regexp.MustCompile("`(go get [^`]+)`").FindStringSubmatch(readme)[1]
		program, err := os.ReadFile(filepath.Join(clone, "test/trial/testdata/main.go.txt"))
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, "/shop/main.go", strings.Replace(string(program), "\t// README\n", block(t, readme, "go", "redlock.Open"), 1), 0o644)
		said := r.run(t, "/shop", "go mod init shop")
		r.run(t, "/shop", "go mod edit -replace="+module+"=/clone") // the clone is the release that there is not yet
		said += r.run(t, "/shop", get)
		said += r.run(t, "/shop", "go run .")
		if !regexp.MustCompile(`\npaid 42\nsent true\n$`).MatchString(said) {
			t.Errorf("the program in Go printed\n%s", said)
		}
		measure(t, start, 3, said)
	})
	install, found := strings.CutSuffix(line(t, used, "go install "), "@latest") // it is installed from the clone before there is a release
	if !found {
		t.Fatal(install)
	}
	export := line(t, used, "export ") + "\n"
	subtest("redlock run", func(t *testing.T) {
		start := time.Now()
		r.write(t, "/shop/report.sh", "#!/bin/sh\necho reported with $REDLOCK_FENCE\n", 0o755)
		said := r.run(t, "/clone", install)
		said += r.run(t, "/shop", export+line(t, used, "redlock run "))
		if !regexp.MustCompile(`(?m)^reported with [1-9]\d*$`).MatchString(said) {
			t.Errorf("redlock run printed\n%s", said)
		}
		again := r.run(t, "/shop", export+line(t, used, "redlock run "))
		if strings.Contains(again, "reported") {
			t.Errorf("once per hour, and a second time it printed\n%s", again)
		}
		measure(t, start, 3, said)
	})
	subtest("agent", func(t *testing.T) {
		start := time.Now()
		page, err := os.ReadFile(filepath.Join(clone, "docs/agent.md"))
		if err != nil {
			t.Fatal(err)
		}
		shown := block(t, string(page), "sh", "redlock agent ")
		agent := r.start(t, "/", "exec "+line(t, shown, "redlock agent ")) // with the masters of README
		defer agent.end()
		for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if _, err := os.Stat(r.dir + "/run/redlock/redlock.sock"); err == nil {
				break
			}
			if time.Since(start) > time.Minute {
				t.Fatalf("no socket of the agent:\n%s", agent.said())
			}
		}
		curl := r.start(t, "/", line(t, shown, "curl "))
		defer curl.end()
		curl.await(t, `{"fence":`)
		measure(t, start, 2, agent.said()+curl.said())
	})
}

func (r root) write(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	name = filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// startMasters starts a server on each address that README names, outside of the root. All of this network is in the loopback device.
func (r root) startMasters(t *testing.T, addresses []string) {
	t.Helper()
	host := func(command ...string) {
		t.Helper()
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
	}
	host("ip", "link", "set", "lo", "up")
	for _, address := range addresses {
		host("ip", "address", "add", address+"/32", "dev", "lo")
		server := exec.CommandContext(t.Context(), cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"), "--bind", address, "--port", "6379",
			"--save", "", "--protected-mode", "no", "--maxmemory-policy", "noeviction")
		server.Dir = t.TempDir()
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Wait() })
		for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			connection, err := new(net.Dialer).DialContext(context.Background(), "tcp", address+":6379")
			if err == nil {
				_ = connection.Close()
				break
			}
			if time.Since(start) > time.Minute {
				t.Fatal(err)
			}
		}
	}
}

// copyClone copies what a clone of this checkout has.
func (r root) copyClone(t *testing.T, clone string) {
	t.Helper()
	if err := os.Mkdir(r.dir+"/clone", 0o755); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh", "-euc", `git -c safe.directory='*' ls-files -z --cached --others --exclude-standard --deduplicate |
		tar --null --ignore-failed-read -T - -c | tar -x -C "$0"`, r.dir+"/clone")
	command.Dir = clone
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
