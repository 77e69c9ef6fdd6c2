package docs_test

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	module = "github.com/caddy-redlock/caddy-redlock"
	traces = "go.opentelemetry.io/otel/trace"
	redis  = "github.com/redis/go-redis/v9"
)

// The library, the middleware and the console must not need Caddy or Prometheus, nor the library anything but go-redis, nor the middleware more
// of OpenTelemetry than its interfaces.
func TestImports(t *testing.T) {
	for _, name := range []string{"/console", "/middleware", "/redlock"} {
		for _, path := range dependencies(t, module+name) {
			if strings.HasPrefix(path, "github.com/caddyserver/") || strings.HasPrefix(path, "github.com/prometheus/") {
				t.Errorf("%s needs %s", name, path)
			}
		}
	}
	for _, name := range []string{"/metrics", "/cmd/redlock"} {
		for _, path := range dependencies(t, module+name) {
			if strings.HasPrefix(path, "github.com/caddyserver/") {
				t.Errorf("%s needs %s", name, path)
			}
		}
	}
	for _, path := range packages(t)[module].Imports {
		if strings.HasPrefix(path, "github.com/spf13/") || strings.HasSuffix(path, "/internal/programs/cli") || strings.HasPrefix(path, "github.com/caddyserver/caddy/v2/cmd") {
			t.Errorf("the root package, which is the Caddy module alone, imports %s for commands", path)
		}
	}
	for _, path := range dependencies(t, module+"/middleware/internal/remember") {
		if !strings.HasPrefix(path, module+"/middleware/internal/") {
			t.Errorf("remember needs %s: it must know no lock and no middleware", path)
		}
	}
	api := dependencies(t, traces)
	for _, path := range dependencies(t, module+"/middleware") {
		if strings.HasPrefix(path, "go.opentelemetry.io/") && !slices.Contains(api, path) {
			t.Errorf("middleware needs %s", path)
		}
	}
	known := dependencies(t, redis)
	for _, path := range dependencies(t, module+"/redlock") {
		if !slices.Contains(known, path) && !strings.HasPrefix(path, redis+"/") && !strings.HasPrefix(path, module+"/") {
			t.Errorf("redlock needs %s, beside go-redis and the standard library", path)
		}
	}
}

// TestRooms: what lies below the library needs nothing of this module, no package of it needs what the programs have, and only tests need
// what is for tests.
func TestRooms(t *testing.T) {
	for path, listed := range packages(t) {
		path = strings.TrimPrefix(path, module+"/")
		if strings.HasPrefix(path, "internal/") && !regexp.MustCompile(`^internal/(base/|engine$|programs/|tests/|redistest$)`).MatchString(path) {
			t.Errorf("%s is in no room", path)
		}
		for _, imported := range listed.Imports {
			room, ours := strings.CutPrefix(imported, module+"/")
			switch {
			case !ours:
			case strings.HasPrefix(path, "internal/base/"),
				strings.HasPrefix(room, "internal/programs/") && isLibrary(path),
				(strings.HasPrefix(room, "internal/tests/") || room == "internal/tests/redistest") && !strings.HasPrefix(path, "internal/tests/"):
				t.Errorf("%s imports %s", path, room)
			}
		}
	}
}

// isLibrary reports whether programs of others import a package, or what that needs.
func isLibrary(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return slices.Contains([]string{"redlock", "middleware", "metrics", "console", "traefik"}, first)
}

// dependencies returns a package and all that it needs, without those of the standard library.
func dependencies(t *testing.T, of string) []string {
	t.Helper()
	listed, found := packages(t)[of]
	if !found {
		t.Fatalf("go list has no %s", of)
	}
	return append(slices.DeleteFunc(slices.Clone(listed.Deps), func(path string) bool {
		domain, _, _ := strings.Cut(path, "/")
		return !strings.Contains(domain, ".")
	}), of)
}

// listed is a package as go list shows it.
type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string // all that it needs
}

// packages returns those of this module, and those of others that are named here.
func packages(t *testing.T) map[string]listed {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return all
}

// list is called once: it has to look at all that Caddy needs.
var list = sync.OnceValues(func() (map[string]listed, error) {
	text, err := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...", traces, redis).Output()
	all := make(map[string]listed)
	for decoder := json.NewDecoder(strings.NewReader(string(text))); err == nil && decoder.More(); {
		var one listed
		err = decoder.Decode(&one)
		all[one.ImportPath] = one
	}
	return all, err
})
