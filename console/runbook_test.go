package console_test

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestRunbook: where something is wrong, the page leads to a section of docs/operations.md, and these exist.
func TestRunbook(t *testing.T) {
	t.Parallel()
	operations, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]bool)
	for _, heading := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(operations), -1) {
		sections[strings.ReplaceAll(strings.ToLower(heading[1]), " ", "-")] = true
	}
	link := regexp.MustCompile(`docs/operations\.md#([^"]*)"`)
	servers := redistest.Start(t, 3)
	locker := newLocker(t, servers)
	base := mount(t, locker)
	require := func(path, section string) {
		t.Helper()
		eventually(t, "the page leads to "+section, func() bool {
			found := link.FindStringSubmatch(text(t, base+path))
			return found == nil && section == "" || found != nil && found[1] == section
		})
		if section != "" && !sections[section] {
			t.Errorf("docs/operations.md has no section %s", section)
		}
	}
	require("", "")
	servers[0].Kill()
	require("", "a-master-is-away")
	servers[1].Kill()
	require("", "no-quorum")
	servers[0].Restart()
	servers[1].Restart()
	require("", "")
	mustLock(t, locker, "key")
	require("?key=key", "a-key-stays-locked")

	for path, method := range map[string]string{"locks/a?key=b": http.MethodGet, "locks/a?key=b&fence=1": http.MethodDelete, "results/a?key=a": http.MethodDelete} {
		if p := ask[console.Problem](t, method, base+path, http.StatusBadRequest); !strings.Contains(p.Detail, "the path and by the parameter key") {
			t.Errorf("%s %s: %+v", method, path, p)
		}
	}
}
