package compat

import (
	"os"
	"path/filepath"
	"testing"
)

// formerEnv names a folder with the sources of the former version: make former.
const formerEnv = "FORMER_SOURCES"

// former compiles the former version or, if there is none, the present one.
func former(t *testing.T) version {
	t.Helper()
	sources := os.Getenv(formerEnv)
	if sources == "" {
		return compile(t, "same", "../..")
	}
	for _, name := range []string{"compat.go", "worker/main.go"} {
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
	return compile(t, "former", sources)
}

// TestVersions runs processes of the former and the present version on the same masters.
func TestVersions(t *testing.T) {
	before, now := former(t), compile(t, "present", "../..")
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
