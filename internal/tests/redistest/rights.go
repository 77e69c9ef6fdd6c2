package redistest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// LeastRights returns the rights that docs/masters.md gives a user of the locks, as the rules of ACL SETUSER. It reads them there, because they stand
// nowhere else.
func LeastRights(tb testing.TB) []string {
	tb.Helper()
	folder, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for ; ; folder = filepath.Dir(folder) {
		text, err := os.ReadFile(filepath.Join(folder, "docs", "masters.md"))
		line := regexp.MustCompile(`(?m)^ACL SETUSER redlock on >password (.*)$`).FindSubmatch(text)
		switch {
		case err == nil && line != nil:
			return strings.Fields(string(line[1]))
		case folder == filepath.Dir(folder):
			tb.Fatal("no docs/masters.md with a line ACL SETUSER redlock is above this folder")
		}
	}
}
