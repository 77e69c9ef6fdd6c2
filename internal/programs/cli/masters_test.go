package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestProcessThatIsGone: nobody is warned of a process that has ended in order, as in each step of a rolling upgrade.
func TestProcessThatIsGone(t *testing.T) {
	now := time.Now()
	process := inspect.Process{Instance: "web2/7", Version: "v1", Since: now.Add(-time.Minute), Seen: now.Add(-9 * time.Second)}
	ended := process
	ended.Ended = true
	for row, shown := range map[string]console.Process{
		"9.0s":         {Process: process},
		"9.0s, ended":  {Process: ended},
		"9.0s, silent": {Process: process, Silent: true},
	} {
		var out strings.Builder
		printProcesses(&out, nil, console.Processes{Processes: []console.Process{shown}}, now)
		if text := out.String(); !strings.Contains(text, row+"\n") || strings.Contains(text, "hangs") != shown.Silent {
			t.Errorf("want %q in\n%s", row, text)
		}
	}
}
