package redis

import (
	"regexp"
	"testing"
)

// TestPatternsTakeOnePass: no script looks for the end of a text with a pattern that Lua tries anew at each character: of a long text, that takes a
// server a thousand times as long as all that the script asks it.
func TestPatternsTakeOnePass(t *testing.T) {
	slow := regexp.MustCompile(`'(%\w|\.|\[)[^']*\$'`) // it begins with what most characters are, rather than with ^
	for op, script := range serverScripts {
		for _, pattern := range slow.FindAllString(script.source, -1) {
			t.Errorf("script %d: %s", op, pattern)
		}
	}
}
