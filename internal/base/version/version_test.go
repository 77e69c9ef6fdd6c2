package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestBuilds builds a program in each way in which this module becomes part of one, and asks it for its version.
func TestBuilds(t *testing.T) {
	checkout := newCheckout(t)
	requireVersion(t, `\(devel\)`, run(t, checkout, "go", "run", "-buildvcs=false", "./cmd/caddy"))

	xcaddy := newXcaddy(t)
	run(t, xcaddy, "go", "mod", "edit", "-require="+module+"@v0.1.0", "-replace="+module+"="+checkout)
	requireVersion(t, `\(devel\)`, run(t, xcaddy, "go", "run", "."))

	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	git := func(args ...string) { run(t, checkout, append([]string{"git"}, args...)...) }
	git("init", "--quiet")
	commit := func() {
		git("add", ".")
		git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--allow-empty", "-m", "test")
	}
	commit()
	git("tag", "v0.1.0")
	stamped := func() string { return run(t, checkout, "go", "run", "-buildvcs=true", "./cmd/caddy") }
	requireVersion(t, `v0\.1\.0`, stamped())
	t.Run("as a dependency", func(t *testing.T) { requireVersion(t, `v0\.1\.0`, builtFromTag(t, checkout)) })
	commit()
	requireVersion(t, `v0\.1\.1-0\.\d{14}-[0-9a-f]{12}`, stamped())
	write(t, filepath.Join(checkout, "changed"), "")
	requireVersion(t, `v0\.1\.1-0\.\d{14}-[0-9a-f]{12}\+dirty`, stamped())
}

// newCheckout returns a small module with the path of this one, with this package and a command.
func newCheckout(t *testing.T) string {
	dir := t.TempDir()
	text, err := os.ReadFile("version.go")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "internal", "base", "version", "version.go"), string(text))
	write(t, filepath.Join(dir, "go.mod"), "module "+module+"\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "shown", "shown.go"), "// Package shown prints the version.\npackage shown\n\nimport (\n\t\"fmt\"\n\n\t\""+module+"/internal/base/version\"\n)\n\nfunc init() { fmt.Print(version.String()) }\n")
	write(t, filepath.Join(dir, "cmd", "caddy", "main.go"), mainOf("shown"))
	return dir
}

// newXcaddy returns a module like the one that xcaddy makes, with this one as a dependency.
func newXcaddy(t *testing.T) string {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module caddy\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, "main.go"), mainOf("shown"))
	return dir
}

func mainOf(imported string) string {
	return "package main\n\nimport _ \"" + module + "/" + imported + "\"\n\nfunc main() {}\n"
}

// builtFromTag returns the version of a program whose dependency Go has fetched from the repository, by its tag.
func builtFromTag(t *testing.T, repository string) string {
	dir := newXcaddy(t)
	for name, value := range map[string]string{
		"GOMODCACHE":         filepath.Join(t.TempDir(), "mod"),
		"GOFLAGS":            "-modcacherw",
		"GOPROXY":            "direct",
		"GOSUMDB":            "off",
		"GIT_CONFIG_COUNT":   "1",
		"GIT_CONFIG_KEY_0":   "url.file://" + repository + ".insteadOf",
		"GIT_CONFIG_VALUE_0": "https://" + module,
		"GIT_ALLOW_PROTOCOL": "file:https",
	} {
		t.Setenv(name, value)
	}
	run(t, dir, "go", "get", module+"@v0.1.0")
	return run(t, dir, "go", "run", ".")
}

func requireVersion(t *testing.T, want, version string) {
	t.Helper()
	if !regexp.MustCompile("^" + want + "$").MatchString(version) {
		t.Errorf("version %q, not %s", version, want)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GIT_CONFIG_GLOBAL="+os.DevNull)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, out)
	}
	return string(out)
}
