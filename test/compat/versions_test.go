package compat

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// formerEnv names a folder with the sources of the former version: make former.
const formerEnv = "FORMER_SOURCES"

// former compiles the former version, and skips the test if there is none. Only make former has it.
func former(t *testing.T) (version version, sources string) {
	t.Helper()
	if sources = os.Getenv(formerEnv); sources == "" {
		t.Skip("run by make former")
	}
	for _, name := range []string{"compat.go", "operate.go", "worker/main.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(sources, "test/compat", name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(target, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return compile(t, "former", sources), sources
}

// wireOf returns the number of how the version in a folder keeps locks on the masters; empty if it has none.
func wireOf(t *testing.T, folder string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "redlock/internal/heartbeat/process.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, number, _ := strings.Cut(string(text), "\nconst wire = ")
	number, _, _ = strings.Cut(number, "\n")
	return number
}

// TestVersions runs processes of the former and the present version on the same masters. If they keep locks there in different ways, they
// must not lock beside one another.
func TestVersions(t *testing.T) {
	before, sources := former(t)
	now, checks := compile(t, "present", "../.."), checks
	if wireOf(t, sources) != wireOf(t, "../..") {
		checks = []check{{"refusal", refusal}}
	}
	for _, c := range checks {
		for _, order := range [][2]version{{before, now}, {now, before}} {
			t.Run(c.name+", "+order[0].name+" first", func(t *testing.T) {
				t.Parallel()
				if err := c.check(t, order[0], order[1]); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestAnotherWire runs the present version beside one that keeps locks in another way.
func TestAnotherWire(t *testing.T) {
	now, other := compile(t, "present", "../.."), mutate(t, "redlock/internal/heartbeat/process.go", "const wire = ", "const wire = 1 + ")
	for _, order := range [][2]version{{now, other}, {other, now}} {
		if err := refusal(t, order[0], order[1]); err != nil {
			t.Error(err)
		}
	}
}
