package clients

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/conformance"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// languages are the programs that run worker_test in their folders, which all understand and print the same. A python3 of pyenv would be
// a script that takes six times as long to start as Python.
var languages = map[string][]string{
	"python": {"/usr/bin/python3", "worker_test.py"},
	"node":   {"node", "worker_test.mjs"},
	"ruby":   {"ruby", "worker_test.rb"},
	"php":    {"php", "worker_test.php"},
	"shell":  {"sh", "worker_test.sh"},
	"bash":   {"bash", "worker_test.sh"},
}

// folder is that of a language's client.
func folder(language string) string {
	if language == "bash" {
		return "shell"
	}
	return language
}

// has reports whether a language is installed. CLIENTS=required fails where it is not.
func has(t *testing.T, language string) bool {
	t.Helper()
	_, err := exec.LookPath(languages[language][0])
	if folder(language) == "shell" {
		_, curl := exec.LookPath("curl")
		_, setsid := exec.LookPath("setsid")
		err = errors.Join(err, curl, setsid)
	}
	if err != nil && os.Getenv("CLIENTS") == "required" {
		t.Error(err)
	} else if err != nil {
		t.Log(err)
	}
	return err == nil
}

// installed returns the languages that there are.
func installed(t *testing.T) (all []string) {
	t.Helper()
	for language := range languages {
		if has(t, language) {
			all = append(all, language)
		}
	}
	return all
}

// some returns the languages that there are, and with -short two of them.
func some(t *testing.T) []string {
	t.Helper()
	all := installed(t)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if testing.Short() {
		all = all[:min(2, len(all))]
	}
	return all
}

// program is the file of redlock.
var program string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "redlock")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "redlock")
	if out, err := exec.Command("go", "build", fmt.Sprintf("-race=%v", redistest.Race), "-ldflags", "-s -w", "-o", program, "../cmd/redlock").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("go build: %v: %s", err, out))
	}
	return m.Run()
}

// realAgent is a process "redlock agent" at a Unix socket and another at a TCP address, on three masters, and a locker on the same.
type realAgent struct {
	socket, address string
	locker          *redlock.Locker
	process         *os.Process // at the Unix socket
	servers         []*redistest.Server
	env             []string
}

func startAgent(t *testing.T) *realAgent {
	t.Helper()
	servers := redistest.Start(t, 3)
	a := &realAgent{servers: servers, socket: filepath.Join(t.TempDir(), "s"), address: fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))}
	var err error
	a.locker, err = redlock.Open(redistest.URLs(servers), redlock.WithTimeout(time.Second), redlock.WithRestartGuard(0), redlock.WithMaxTTL(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.locker.Close() })
	a.env = append(os.Environ(), "REDLOCK_MASTERS="+strings.Join(redistest.URLs(servers), ","), "REDLOCK_RESTART_GUARD=off", "REDLOCK_TIMEOUT=1s", "REDLOCK_MAX_TTL=30s")
	a.serve(t)
	serveAgent(t, "tcp", a.address, exec.Command(program, "agent", "--listen", a.address), append(a.env, "REDLOCK_AGENT_TOKEN=secret"))
	return a
}

// serve starts the agent at the Unix socket.
func (a *realAgent) serve(t *testing.T) {
	t.Helper()
	a.process = serveAgent(t, "unix", a.socket, exec.Command(program, "agent", "--listen", "unix:"+a.socket), a.env)
}

// serveAgent starts an agent, and waits until it can be reached.
func serveAgent(t *testing.T, network, address string, cmd *exec.Cmd, env []string) *os.Process {
	t.Helper()
	cmd.Env = env
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial(network, address); err == nil {
			_ = c.Close()
			return cmd.Process
		}
		if time.Now().After(end) {
			t.Fatal("the agent did not start")
		}
	}
}

// worker is a running client.
type worker struct{ *conformance.Worker }

// workerOf returns the command of a language's worker.
func workerOf(t *testing.T, language string) conformance.Command {
	t.Helper()
	command := conformance.Command{Args: languages[language], Dir: folder(language), Env: []string{"PYTHONDONTWRITEBYTECODE=1"}}
	if language == "bash" { // which is sh on many machines
		command.Env = append(command.Env, "PATH="+shIs(t, languages[language][0])+":"+os.Getenv("PATH"))
	}
	return command
}

func (a *realAgent) start(t *testing.T, language, options string, args ...string) *worker {
	t.Helper()
	command := workerOf(t, language)
	w, err := command.Start(t.Context(), t.TempDir(), append([]string{"ADDRESS=" + a.socket, "TOKEN="}, strings.Fields(options)...), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.End() })
	return &worker{w}
}

// shIs returns a folder in which sh is another shell.
func shIs(t *testing.T, shell string) string {
	t.Helper()
	dir := t.TempDir()
	path, err := exec.LookPath(shell)
	if err == nil {
		err = os.Symlink(path, filepath.Join(dir, "sh"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// expect requires the next line to begin like this, and returns the rest.
func (w *worker) expect(t *testing.T, want string) string {
	t.Helper()
	line, ok := w.Line()
	if !ok {
		t.Fatalf("nothing more was printed, want %q: %v, %v", want, w.End(), w)
	}
	rest, ok := strings.CutPrefix(line, want)
	if !ok {
		t.Fatalf("%q was printed, want %q", line, want)
	}
	return strings.TrimSpace(rest)
}

// expectError requires that the next line tells of an error.
func (w *worker) expectError(t *testing.T) {
	t.Helper()
	if line := w.expect(t, ""); !strings.HasPrefix(line, "error ") && !strings.HasPrefix(line, "unavailable ") {
		t.Fatalf("%q was printed, want an error", line)
	}
}

// end tells a worker that holds a lock to end its work.
func (w *worker) end(t *testing.T) {
	t.Helper()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
}

// TestClientSlots has two clients of each language hold one key at a time, and a third find both slots taken.
func TestClientSlots(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	for _, language := range some(t) {
		slots := make(map[string]bool)
		var all []*worker
		for range 2 {
			w := a.start(t, language, "CONCURRENCY=2", "hold", language)
			slots[w.expect(t, "held ")] = true
			all = append(all, w)
		}
		if !slots["0"] || !slots["1"] {
			t.Errorf("%s: slots %v, want 0 and 1", language, slots)
		}
		a.start(t, language, "CONCURRENCY=2 WAIT=0", "hold", language).expect(t, "refused ")
		for _, w := range all {
			w.end(t)
			w.expect(t, "done")
		}
	}
}

// TestClientLoses: each client whose agent is killed or stopped, or whose lock is taken from it, stops before another one has the lock.
func TestClientLoses(t *testing.T) {
	t.Parallel()
	for how, lose := range map[string]func(t *testing.T, a *realAgent, fence uint64){
		"killed":  func(_ *testing.T, a *realAgent, _ uint64) { _ = a.process.Kill() },
		"stopped": func(_ *testing.T, a *realAgent, _ uint64) { _ = a.process.Signal(syscall.SIGSTOP) },
		"forced": func(t *testing.T, a *realAgent, fence uint64) {
			if err := inspect.Force(t.Context(), a.locker, "k", 0, fence); err != nil {
				t.Error(err)
			}
		},
	} {
		for _, language := range some(t) {
			t.Run(how+"/"+language, func(t *testing.T) {
				t.Parallel()
				a := startAgent(t)
				// It waits for longer than the TTL, so that counting from when a line has come would be too long.
				other, err := a.locker.Lock(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				w := a.start(t, language, "TTL=9 WAIT=60", "hold", "k") // on a busy machine a short lease is over before the client says that it has it
				time.Sleep(10 * time.Second)
				if err := other.Unlock(); err != nil {
					t.Fatal(err)
				}
				fence, err := strconv.ParseUint(w.expect(t, "held "), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				lose(t, a, fence)
				other = a.lock(t, "k")
				had := time.Now().UnixMilli()
				last, _, _ := strings.Cut(w.expect(t, "lost "), " ")
				if n, err := strconv.ParseInt(last, 10, 64); err != nil || how != "forced" && n > had {
					t.Errorf("%s believed in its lock at %s, and another had it at %d", language, last, had)
				}
				_ = other.Unlock()
			})
		}
	}
}

// TestClientRenews: a lock is held across renewals, on the very keys that were asked for.
func TestClientRenews(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	keys := make(map[string][]string)
	workers := make(map[string]*worker)
	for _, language := range some(t) {
		keys[language] = []string{language + `"\'$(x)%s\n`, language + "a\nb\t\x01\x7f", language + "ключ 🔑\u2028", " -n" + language}
		workers[language] = a.start(t, language, "TTL=9", append([]string{"hold"}, keys[language]...)...)
		workers[language].expect(t, "held ")
	}
	for range 11 { // none holds for so long without renewals
		time.Sleep(time.Second)
		for language, keys := range keys {
			for _, key := range keys {
				if lock, err := a.locker.TryLock(t.Context(), key); err == nil {
					t.Errorf("%s does not hold %q", language, key)
					_ = lock.Unlock()
				}
			}
		}
	}
	for _, w := range workers {
		w.end(t)
		w.expect(t, "done")
	}
}

// TestClientReplaced: clients whose agent is replaced while they wait ask the one that takes its place.
func TestClientReplaced(t *testing.T) {
	t.Parallel()
	a := startAgent(t)
	busy := make(map[string]*redlock.Lock)
	waiting := make(map[string]*worker)
	for _, language := range some(t) {
		lock, err := a.locker.Lock(t.Context(), language)
		if err != nil {
			t.Fatal(err)
		}
		busy[language], waiting[language] = lock, a.start(t, language, "WAIT=100", "hold", language)
	}
	for a.waiting(t) < len(waiting) {
		time.Sleep(10 * time.Millisecond)
	}
	cmd := exec.Command(program, "agent", "--replace", "--listen", "unix:"+a.socket)
	cmd.Env = a.env
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	for language, w := range waiting {
		if err := busy[language].Unlock(); err != nil {
			t.Error(err)
		}
		w.expect(t, "held ")
		w.end(t)
		w.expect(t, "done")
	}
}

// TestPHPComputes: PHP sees no line while it works. After that it believes in its lock if the agent says that it still has it, and not if
// the agent says nothing.
func TestPHPComputes(t *testing.T) {
	t.Parallel()
	if testing.Short() || !has(t, "php") { // it computes for 18 seconds
		t.Skip()
	}
	a := startAgent(t)
	const options = "TTL=6 BUSY=9"
	w := a.start(t, "php", options, "hold", "k")
	w.expect(t, "held ")
	w.end(t)
	w.expect(t, "done")
	w = a.start(t, "php", options, "hold", "k")
	w.expect(t, "held ")
	if err := a.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "lost ")
}
