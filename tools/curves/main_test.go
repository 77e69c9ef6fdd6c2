package main

import (
	"os"
	"testing"
)

// TestPictures: each picture is that of the present results.
func TestPictures(t *testing.T) {
	t.Chdir("../..")
	for _, p := range pictures {
		drawn, err := p.draw()
		if err != nil {
			t.Fatal(err)
		}
		if present, err := os.ReadFile(p.path()); err != nil || string(present) != drawn {
			t.Errorf("%s isn't that of %s (%v): run go run ./tools/curves", p.path(), results, err)
		}
	}
}
