// Package generated is for tests that generate files of the repository: they check that the files are up to date, and with
// -update they write them.
package generated

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write anew what the tests generate")

// Require fails the test if a file is not what the test has generated. With -update it writes the file first. The command is the
// one to run then, for the message.
func Require(t testing.TB, path, want, command string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date: run %s", path, command)
	}
}
