package redis

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestPatternsTakeOnePass: no script looks for the end of a text with a pattern that Lua tries anew at each character: of a long text, that takes a
// server a thousand times as long as all that the script asks it.
func TestPatternsTakeOnePass(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	slow := regexp.MustCompile(`'(%\w|\.|\[)[^']*\$'`) // it begins with what most characters are, rather than with ^
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, pattern := range slow.FindAllString(string(text), -1) {
			t.Errorf("%s: %s", file, pattern)
		}
	}
}
