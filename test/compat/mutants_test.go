package compat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mutants are versions that would not work beside the present one, and the check that finds each.
var mutants = []struct {
	name, check, file, text, instead string
}{
	{"another key format", "one holder", "redlock/internal/protocol/protocol.go", `return prefix + ":{" + key + "}"`, `return prefix + ":lock:{" + key + "}"`},
	{"fencing tokens in milliseconds", "one holder", "redlock/lock.go", `return uint64(k.made().attempt.Fence)`, `return uint64(k.made().attempt.Fence) / 1000`},
	{"tickets in milliseconds", "one line", "redlock/internal/redis/queue.lua", `call('ZADD', QUEUE, ARGV[3], process)`, `call('ZADD', QUEUE, ARGV[3] / 1000, process)`},
	{"another message to wake a process", "one line", "redlock/internal/redis/queue.lua", `string.format('%.0f', number) .. (call or '') .. ' ' .. (key or LOCK)`, `(key or LOCK) .. string.format(' %.0f', number)`},
	{"another word for a process's name", "inspect", "redlock/internal/heartbeat/process.go", "`json:\"name\"`\n\tVersion", "`json:\"instance\"`\n\tVersion"},
	{"another mark of a forced release", "forced release", "redlock/internal/redis/force.lua", `':forced:'`, `':released:'`},
	{"another key of a result", "results", "redlock/internal/redis/conn.go", `":result"`, `":done"`},
	{"another key of a delivery", "remembered responses", "middleware/delivery.go", `"dedupe:" +`, `"delivery:" +`},
	{"another format of responses", "remembered responses", "middleware/internal/remember/encode.go", "version = 1\n", "version = 2\n"},
	{"another fingerprint", "remembered responses", "middleware/delivery.go", `c.originalURL(r).RequestURI())`, `c.originalURL(r).Path)`},
	{"another shape of a set of masters", "sets of masters", "redlock/internal/heartbeat/process.go", "`json:\"servers\"`", "`json:\"members\"`"},
}

// TestMutants runs the former version beside wrong ones, each of which must be found, in one order or the other.
func TestMutants(t *testing.T) {
	before, sources := former(t)
	if wireOf(t, sources) != wireOf(t, "../..") {
		t.Skip("the former version is refused, and so is each wrong one")
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			wrong := mutate(t, m.file, m.text, m.instead)
			for _, c := range checks {
				if c.name != m.check {
					continue
				}
				first, second := c.check(t, before, wrong), c.check(t, wrong, before)
				t.Logf("former first: %v; mutant first: %v", first, second)
				if first == nil && second == nil {
					t.Error("not found")
				}
				return
			}
			t.Fatalf("no check %q", m.check)
		})
	}
}

// mutate compiles the present version with another text in one file.
func mutate(t *testing.T, file, text, instead string) version {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("../..", file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), text) != 1 {
		t.Fatalf("%s doesn't have %q once: adapt the mutant", file, text)
	}
	folder := t.TempDir()
	mutant, overlay := filepath.Join(folder, filepath.Base(file)), filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(mutant, []byte(strings.Replace(string(source), text, instead, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o644); err != nil {
		t.Fatal(err)
	}
	return compile(t, "mutant", "../..", "-overlay", overlay)
}
