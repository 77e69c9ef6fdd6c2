package traefik

import (
	"encoding/json"
	"strings"
	"testing"

	parse "github.com/caddy-redlock/caddy-redlock/internal/rule"
)

// TestSpellingsOfSettings: the plugin knows what it needs while the agent is away in each spelling that the agent takes.
func TestSpellingsOfSettings(t *testing.T) {
	for name, value := range map[string]string{"on_no_quorum": "pass", "no_quorum_status": "503", "key_header": "X-Key", "fence_header": "X-Fence"} {
		for _, separator := range []string{"_", "-", ""} {
			written := strings.ReplaceAll(name, "_", separator)
			for _, written := range []string{written, strings.ToUpper(written)} {
				settings := map[string]interface{}{"key": "a", written: value}
				text, err := json.Marshal(settings)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := parse.Parse(text); err != nil {
					t.Fatalf("the agent refuses %s: %v", written, err)
				}
				r, err := newRule(&agent{}, settings)
				if err != nil {
					t.Fatal(err)
				}
				if got := r.text(name); got != value {
					t.Errorf("%s: the plugin reads %q, want %q", written, got, value)
				}
			}
		}
	}
}
