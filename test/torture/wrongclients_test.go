package torture

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// wrongClients are clients that are wrong in one way each, as texts that take the place of others.
var wrongClients = map[string]map[string][]string{ // by what they do, and language
	"a child frees its parent's lock, and the parent isn't told": {
		"python": {
			"if os.getpid() != self._pid:", "if False:",
			"os.register_at_fork(after_in_child=_close_copies)", "pass",
			"_PATIENCE_AT_END = 5", "_PATIENCE_AT_END = 0.1", // else the child, which lacks the reader, waits until the parent is late
			`self._lost = self._lost or (`, `self._lost = self._lost and (`,
		},
		"ruby": {
			"if Process.pid != @pid", "if false",
			"Process.pid == @pid ?", "true ?",
			"if pid.zero?", "if false",
			`@lost ||= "somebody else has ended it"`, "",
			`@lost ||= "the connection to the agent has ended: #{e.message}"`, "",
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
			"left(this.#end) > 0;", "true;",
			`resolve(this.#fail("the connection has ended"))`, "resolve()",
			`.on("error", (error) => this.#fail(error.message || error.code))`, `.on("error", () => {})`,
			".catch((error) => this.#fail(error))", ".catch(() => {})",
			"(await this.#late()) ? this.#fail(late) : this.#watch()", "undefined",
		},
		"ruby": {
			"all? { |now, limit| now < limit }", "all? { true }",
			`@lost ||= "somebody else has ended it"`, "",
			`@lost ||= "the connection to the agent has ended: #{e.message}"`, "",
		},
		"shell": {
			"\tkill -s KILL 0", "\t:",
			`lose "the agent at $_socket: $_error"`, ":",
			`[ "$_now" -lt "$_end" ] || lose`, ": ||",
		},
	},
}

// TestWitnessFindsWrongClients: the witness complains of each client that is wrong. It takes minutes, and runs where the torture does so, too.
func TestWitnessFindsWrongClients(t *testing.T) {
	if tortureTime(t) < 10*time.Minute {
		t.Skip("make torture runs it")
	}
	t.Parallel()
	for does, texts := range wrongClients {
		for _, k := range kinds(t) {
			replace, ok := texts[k.name]
			if !ok {
				continue
			}
			t.Run(k.name+": "+does, func(t *testing.T) {
				r := newTorture(t, rand.Uint64())
				r.sources = t.TempDir()
				if err := os.CopyFS(filepath.Join(r.sources, k.folder), os.DirFS(filepath.Join("../../clients", k.folder))); err != nil {
					t.Fatal(err)
				}
				mutate(t, filepath.Join(r.sources, k.folder, redlockFile[k.folder]), replace)
				r.startClients(slices.Repeat([]kind{k}, 4)...)
				for strikes := 1; len(r.complaints()) == 0; strikes++ {
					if strikes > 200 {
						t.Fatal("not found by 200 strikes")
					}
					mend := r.strikeClients()
					r.sleep(4000)
					mend()
					r.sleep(3000)
				}
				t.Log(r.complaints()[0])
			})
		}
	}
}

// redlockFile are the clients' files, in their folders.
var redlockFile = map[string]string{"python": "redlock_agent.py", "node": "redlock_agent.mjs", "ruby": "redlock_agent.rb", "php": "redlock.php", "shell": "redlock.sh"}

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
