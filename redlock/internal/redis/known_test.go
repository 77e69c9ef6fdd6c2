package redis

import (
	"bufio"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestOnlyNoScriptForgets: after an error of a script its source isn't sent again, unless the server says that it lacks the script.
func TestOnlyNoScriptForgets(t *testing.T) {
	for text, known := range map[string]bool{
		"-WRONGTYPE Operation against a key holding the wrong kind of value": true,
		"-OOM command not allowed when used memory > 'maxmemory'.":           true,
		"-NOSCRIPT No matching script. Please use EVAL.":                     false,
	} {
		c := &conn{in: bufio.NewReader(strings.NewReader(text + "\r\n"))}
		c.known[protocol.OpAcquire].Store(true)
		if err := c.Receive([]*protocol.Command{{Op: protocol.OpAcquire}}); err != nil {
			t.Fatal(err)
		}
		if c.known[protocol.OpAcquire].Load() != known {
			t.Errorf("%s: known %v, want %v", text, !known, known)
		}
	}
}
