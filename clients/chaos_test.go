package clients

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	for _, overlap := range newChaos(t, ".").run(length, slices.Repeat(installed(t), 2)...) {
		t.Error(overlap)
	}
}

// mutants are clients that are wrong in one way each, as texts that take the place of others.
var mutants = map[string]map[string][]string{ // by what they do, and language
	"a child frees its parent's lock, and the parent isn't told": {
		"python": {
			"if os.getpid() != self._pid:", "if False:",
			"if os.getpid() == self._pid:", "if True:",
			"os.register_at_fork(after_in_child=_close_copies)", "pass",
			`self._lost = self._lost or (`, `self._lost = self._lost and (`,
		},
		"ruby": {
			"if Process.pid != @pid", "if false",
			"if pid.zero?", "if false",
			"@lost ||= reason }", "reason }",
		},
		"php": {
			"if (getmypid() === $this->pid) {\n            return false;", "if (true) {\n            return false;",
			"$this->lost ??= 'somebody else has ended it';", "",
			"$this->lost ??= 'the connection to the agent has ended';", "",
		},
	},
	"an agent that is gone is no loss, and time doesn't pass": {
		"python": {
			"any(now >= end for", "any(False for",
			`self._lost = self._lost or (`, `self._lost = self._lost and (`,
		},
		"node": {
			"every((now, i) => now < this.#end[i]);", "every(() => true);",
			`resolve(this.#fail("the connection has ended"))`, "resolve()",
			`.on("error", (error) => this.#fail(error.message || error.code))`, `.on("error", () => {})`,
			".catch((error) => this.#fail(error))", ".catch(() => {})",
			"this.held || this.#lost !== undefined || this.#fail(late)", "undefined",
		},
		"ruby": {
			"all? { |now, limit| now < limit }", "all? { true }",
			"@lost ||= reason }", "reason }",
		},
		"shell": {
			"\tkill -s KILL 0", "\t:",
			`lose "the agent at $socket: $error"`, ":",
			`[ "$now" -lt "$end" ] || lose`, ": ||",
		},
	},
}

// TestChaosFindsMutants: the chaos finds each client that is wrong. It takes minutes, and runs where CHAOS_TIME is set.
func TestChaosFindsMutants(t *testing.T) {
	if os.Getenv("CHAOS_TIME") == "" {
		t.Skip("CHAOS_TIME isn't set")
	}
	for does, texts := range mutants {
		for language, replace := range texts {
			if !has(t, language) {
				continue
			}
			t.Run(language+": "+does, func(t *testing.T) {
				dir := t.TempDir()
				if err := os.CopyFS(filepath.Join(dir, language), os.DirFS(language)); err != nil {
					t.Fatal(err)
				}
				mutate(t, filepath.Join(dir, language, redlockFile[language]), replace)
				for round := 1; ; round++ {
					if overlaps := newChaos(t, dir).run(10*time.Second, slices.Repeat([]string{language}, 4)...); len(overlaps) > 0 {
						t.Logf("found in round %d, of 10 s: %s", round, overlaps[0])
						return
					}
					if round == 40 {
						t.Fatalf("not found in %d rounds", round)
					}
				}
			})
		}
	}
}

// redlockFile are the clients' files, in their folders.
var redlockFile = map[string]string{"python": "redlock.py", "node": "redlock.mjs", "ruby": "redlock.rb", "php": "redlock.php", "shell": "redlock.sh"}

// mutate has each second text take the place of the one before it, which must be there.
func mutate(t *testing.T, file string, replace []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(replace, 2) {
		if !strings.Contains(string(text), pair[0]) {
			t.Fatalf("%s lacks %q", file, pair[0])
		}
		text = []byte(strings.ReplaceAll(string(text), pair[0], pair[1]))
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func newChaos(t *testing.T, clients string) *chaos {
	t.Helper()
	return &chaos{t: t, clients: clients, a: startAgent(t), dir: t.TempDir()}
}

// run has one client of each of the languages want a key for so long, and returns who had it at once.
func (c *chaos) run(length time.Duration, languages ...string) (overlaps []string) {
	c.bound = length + 5*time.Minute
	for _, language := range languages {
		c.workers = append(c.workers, c.start(language))
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
			c.a.serve(c.t)
		},
		"the agent is stopped":  func() { c.stop(c.a.process) },
		"the agent is replaced": c.replace,
		"the agent ends": func() {
			_ = c.a.process.Signal(syscall.SIGTERM) // its clients don't
			pause(time.Second)
			_ = c.a.process.Kill()
			c.a.serve(c.t)
		},
		"a master is stopped": func() {
			one := c.a.servers[rand.IntN(len(c.a.servers))]
			one.Pause()
			pause(2 * time.Second)
			one.Resume()
		},
	}
	names := slices.Collect(maps.Keys(faults))
	count := make(map[string]int)
	for end := time.Now().Add(length); time.Now().Before(end); pause(3 * time.Second) {
		name := names[rand.IntN(len(names))]
		count[name]++
		faults[name]()
	}
	if err := os.WriteFile(c.file("stop"), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	for _, w := range c.workers {
		if err := w.cmd.Wait(); err != nil {
			c.t.Errorf("%s: %v", w.language, err)
		}
	}
	c.t.Log(count)
	return c.judge(languages)
}

func pause(most time.Duration) { time.Sleep(rand.N(most)) }

// chaos is what TestClientChaos has running.
type chaos struct {
	t       *testing.T
	clients string // the folder of the clients' folders
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
	w.cmd.Dir, w.cmd.Stdout = filepath.Join(c.clients, folder(language)), out
	w.cmd.Env = append(os.Environ(), "ADDRESS=unix:"+c.a.socket, "TOKEN=", "STOP="+c.file("stop"), "PYTHONDONTWRITEBYTECODE=1", "TTL=2", "WAIT=60", "PATIENCE=5", "TMPDIR="+c.dir)
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

// judge returns who have had the lock at once: from when it was had to the last look at it, or to the end of a block that ended in order.
func (c *chaos) judge(languages []string) (overlaps []string) {
	var all []*stretch
	lost := 0
	slices.Sort(languages)
	for _, language := range slices.Compact(languages) {
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
			overlaps = append(overlaps, fmt.Sprintf("two have had the lock at once: %+v, %+v", s, other))
		}
	}
	if len(all) == 0 {
		c.t.Error("nobody has had the lock")
	}
	c.t.Logf("%d stretches, %d losses told", len(all), lost)
	return overlaps
}
