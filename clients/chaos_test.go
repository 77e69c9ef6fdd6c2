package clients

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// stretch is a time, in ms, in which a client has had the lock for certain. Locks are told apart by their fences.
type stretch struct {
	language    string
	fence       uint64
	from, until int64
	left        int64 // when its block ended, if that was in order
}

// TestClientChaos: clients of all languages want one key, fork while they have it, and don't look at it for seconds, while they, their agent
// and a master are killed, stopped and replaced. No two have the lock at once, and no block ends in order whose lock was lost. CHAOS_TIME is
// for a longer test.
func TestClientChaos(t *testing.T) {
	t.Parallel()
	length := 3 * time.Second
	if text := os.Getenv("CHAOS_TIME"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	c := &chaos{t: t, a: startAgent(t), dir: t.TempDir(), bound: length + 5*time.Minute}
	for _, language := range installed(t) {
		for range 2 {
			c.workers = append(c.workers, c.start(language))
		}
	}
	faults := map[string]func(){
		"a client is killed": func() {
			i := rand.IntN(len(c.workers))
			_ = c.workers[i].cmd.Process.Kill()
			_ = c.workers[i].cmd.Wait()
			c.workers[i] = c.start(c.workers[i].language)
		},
		"a client is stopped": func() { c.stop(c.workers[rand.IntN(len(c.workers))].cmd.Process) },
		"the agent is killed": func() {
			_ = c.a.process.Kill()
			c.a.serve(t)
		},
		"the agent is stopped":  func() { c.stop(c.a.process) },
		"the agent is replaced": c.replace,
		"the agent ends": func() {
			_ = c.a.process.Signal(syscall.SIGTERM) // its clients don't
			pause(time.Second)
			_ = c.a.process.Kill()
			c.a.serve(t)
		},
		"a master is stopped": func() {
			one := c.a.servers[rand.IntN(len(c.a.servers))]
			one.Pause()
			pause(2 * time.Second)
			one.Resume()
		},
	}
	names := make([]string, 0, len(faults))
	for name := range faults {
		names = append(names, name)
	}
	count := make(map[string]int)
	for end := time.Now().Add(length); time.Now().Before(end); pause(3 * time.Second) {
		name := names[rand.IntN(len(names))]
		count[name]++
		faults[name]()
	}
	if err := os.WriteFile(c.file("stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range c.workers {
		if err := w.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", w.language, err)
		}
	}
	c.judge()
	t.Log(count)
}

func pause(most time.Duration) { time.Sleep(rand.N(most)) }

// chaos is what TestClientChaos has running.
type chaos struct {
	t       *testing.T
	a       *realAgent
	dir     string
	bound   time.Duration // for a client
	workers []*chaosWorker
}

type chaosWorker struct {
	language string
	cmd      *exec.Cmd
}

func (c *chaos) file(name string) string { return filepath.Join(c.dir, name) }

// start has a client add what becomes of its locks to a file of its language.
func (c *chaos) start(language string) *chaosWorker {
	c.t.Helper()
	out, err := os.OpenFile(c.file(language), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	ctx, cancel := context.WithTimeout(c.t.Context(), c.bound)
	c.t.Cleanup(cancel)
	w := &chaosWorker{language, exec.CommandContext(ctx, languages[language][0], append(slices.Clone(languages[language][1:]), "chaos", "k")...)}
	w.cmd.Dir, w.cmd.Stdout = folder(language), out
	w.cmd.Env = append(os.Environ(), "ADDRESS="+c.a.socket, "TOKEN=", "STOP="+c.file("stop"), "PYTHONDONTWRITEBYTECODE=1", "TTL=2", "WAIT=60", "PATIENCE=5", "TMPDIR="+c.dir)
	if language == "bash" {
		w.cmd.Env = append(w.cmd.Env, "PATH="+shIs(c.t, "bash")+":"+os.Getenv("PATH"))
	}
	if err := w.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	return w
}

// stop stops a process, for longer than the TTL at times.
func (c *chaos) stop(p *os.Process) {
	_ = p.Signal(syscall.SIGSTOP)
	pause(4 * time.Second)
	_ = p.Signal(syscall.SIGCONT)
}

// replace has another agent take the place of the present one, which serves those who hold locks to their end.
func (c *chaos) replace() {
	c.t.Helper()
	before, err := os.Stat(c.a.socket)
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(program, "agent", "--replace", "--listen", "unix:"+c.a.socket)
	cmd.Env = c.a.env
	exited, err := redistest.StartProcess(cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	for {
		if after, err := os.Stat(c.a.socket); err == nil && !os.SameFile(before, after) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.a.process = cmd.Process
}

// judge requires that no two have had the lock at once: from when it was had to the last look at it, or to the end of a block that ended in
// order.
func (c *chaos) judge() {
	var all []*stretch
	lost := 0
	for _, language := range installed(c.t) {
		text, err := os.ReadFile(c.file(language))
		if err != nil {
			c.t.Fatal(err)
		}
		of := make(map[uint64]*stretch)
		for line := range strings.Lines(string(text)) {
			var word string
			var fence uint64
			var at int64
			if n, _ := fmt.Sscan(line, &word, &fence, &at); n < 2 {
				continue
			}
			s := of[fence]
			switch {
			case word == "has":
				of[fence] = &stretch{language: language, fence: fence, from: at, until: at}
			case word == "lost":
				lost++
			case s == nil:
			case word == "had":
				s.until = at
			case word == "left":
				s.left = at
			case word == "freed":
				s.until = s.left
			}
		}
		freed := 0
		for _, s := range of {
			if s.until > s.from {
				all = append(all, s)
			}
			if s.left == s.until {
				freed++
			}
		}
		c.t.Logf("%s: %d locks, of which %d ended in order", language, len(of), freed)
	}
	slices.SortFunc(all, func(a, b *stretch) int { return cmp.Compare(a.from, b.from) })
	for i, s := range all {
		for _, other := range all[i+1:] {
			if other.from >= s.until {
				break
			}
			c.t.Errorf("two have had the lock at once: %+v, %+v", s, other)
		}
	}
	if len(all) == 0 {
		c.t.Error("nobody has had the lock")
	}
	c.t.Logf("%d stretches, %d losses told", len(all), lost)
}
