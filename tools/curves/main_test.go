package main

import (
	"os"
	"testing"
)

// TestPicture: the picture is that of the present results.
func TestPicture(t *testing.T) {
	t.Chdir("../..")
	drawn, err := draw()
	if err != nil {
		t.Fatal(err)
	}
	if present, err := os.ReadFile(file); err != nil || string(present) != drawn {
		t.Errorf("%s isn't that of %s (%v): run go run ./tools/curves", file, results, err)
	}
}
