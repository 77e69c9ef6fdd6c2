package docs_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The library, the middleware and the console must not need Caddy or Prometheus, nor the library anything but go-redis, nor the middleware more
// of OpenTelemetry than its interfaces.
func TestImports(t *testing.T) {
	for _, path := range dependencies(t, "./console", "./middleware", "./redlock") {
		if strings.HasPrefix(path, "github.com/caddyserver/") || strings.HasPrefix(path, "github.com/prometheus/") {
			t.Errorf("console, middleware or redlock needs %s", path)
		}
	}
	for _, path := range dependencies(t, "./metrics") {
		if strings.HasPrefix(path, "github.com/caddyserver/") {
			t.Errorf("metrics needs %s", path)
		}
	}
	for _, path := range dependencies(t, "./cmd/redlock") {
		if strings.HasPrefix(path, "github.com/caddyserver/") {
			t.Errorf("cmd/redlock needs %s", path)
		}
	}
	own := goList(t, "-f", `{{join .Imports "\n"}}`, ".")
	for _, path := range own {
		if strings.HasPrefix(path, "github.com/spf13/") || strings.HasSuffix(path, "/internal/programs/cli") || strings.HasPrefix(path, "github.com/caddyserver/caddy/v2/cmd") {
			t.Errorf("the root package, which is the Caddy module alone, imports %s for commands", path)
		}
	}
	for _, path := range dependencies(t, "./middleware/internal/remember") {
		if !strings.HasPrefix(path, "github.com/caddy-redlock/caddy-redlock/middleware/internal/") {
			t.Errorf("remember needs %s: it must know no lock and no middleware", path)
		}
	}
	api := make(map[string]bool)
	for _, path := range dependencies(t, "go.opentelemetry.io/otel/trace") {
		api[path] = true
	}
	for _, path := range dependencies(t, "./middleware") {
		if strings.HasPrefix(path, "go.opentelemetry.io/") && !api[path] {
			t.Errorf("middleware needs %s", path)
		}
	}
	known := make(map[string]bool)
	for _, path := range dependencies(t, "github.com/redis/go-redis/v9") {
		known[path] = true
	}
	for _, path := range dependencies(t, "./redlock") {
		if !known[path] && !strings.HasPrefix(path, "github.com/redis/go-redis/v9/") && !strings.HasPrefix(path, "github.com/caddy-redlock/caddy-redlock/") {
			t.Errorf("redlock needs %s, beside go-redis and the standard library", path)
		}
	}
}

// TestRooms: what lies below the library needs nothing of this module, no package of it needs what the programs have, and only tests need
// what is for tests.
func TestRooms(t *testing.T) {
	const module = "github.com/caddy-redlock/caddy-redlock/"
	for _, line := range goListLines(t, "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...") {
		path, imports, _ := strings.Cut(strings.TrimPrefix(line, module), " ")
		if strings.HasPrefix(path, "internal/") && !regexp.MustCompile(`^internal/(base/|programs/|tests/|redistest$)`).MatchString(path) {
			t.Errorf("%s is in no room", path)
		}
		for imported := range strings.FieldsSeq(imports) {
			room, ours := strings.CutPrefix(imported, module)
			switch {
			case !ours:
			case strings.HasPrefix(path, "internal/base/"),
				strings.HasPrefix(room, "internal/programs/") && isLibrary(path),
				(strings.HasPrefix(room, "internal/tests/") || room == "internal/redistest") && !strings.HasPrefix(path, "internal/tests/"):
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

// dependencies returns all packages that these need, without those of the standard library.
func dependencies(t *testing.T, packages ...string) []string {
	t.Helper()
	return goList(t, append([]string{"-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, packages...)...)
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	return strings.Fields(strings.Join(goListLines(t, args...), "\n"))
}

func goListLines(t *testing.T, args ...string) []string {
	t.Helper()
	text, err := exec.Command("go", append([]string{"list"}, args...)...).CombinedOutput()
	if err != nil || len(text) == 0 {
		t.Fatalf("go list: %v: %s", err, text)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}
