package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestBuilds builds a program in each way in which this module becomes part of one, and asks it for its version. Where Go records none, the version
// differs as soon as the program does.
func TestBuilds(t *testing.T) {
	checkout := newCheckout(t)
	xcaddy := newXcaddy(t)
	run(t, xcaddy, "go", "mod", "edit", "-require="+module+"@v0.1.0", "-replace="+module+"="+checkout)
	dockerfile, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	inImage := regexp.MustCompile(`(?m)^RUN (.*go build.*)$`).FindSubmatch(dockerfile)
	if inImage == nil {
		t.Fatal("the Dockerfile builds nothing")
	}
	unrecorded := map[string]func() string{
		"go run": func() string { return run(t, checkout, "go", "run", "-buildvcs=false", "./cmd/caddy") },
		"go build": func() string {
			run(t, checkout, "go", "build", "-buildvcs=false", "-o", "bin/", "./cmd/redlock")
			return run(t, checkout, filepath.Join(checkout, "bin", "redlock"))
		},
		"the image": func() string {
			run(t, checkout, "sh", "-euc", string(inImage[1]))
			return run(t, checkout, filepath.Join(checkout, "bin", "caddy"))
		},
		"xcaddy": func() string {
			run(t, xcaddy, "go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-w -s", "-o", "caddy")
			return run(t, xcaddy, filepath.Join(xcaddy, "caddy"))
		},
	}
	former := make(map[string]string)
	for name, version := range unrecorded {
		former[name] = version()
		requireVersion(t, `devel-[0-9a-f]{8}`, former[name])
	}
	if again := unrecorded["go build"](); again != former["go build"] {
		t.Errorf("the same program is %s, and then %s", former["go build"], again)
	}
	shows(t, checkout, "later")
	later := unrecorded["the image"]() // stripped, unlike the others
	requireVersion(t, `devel-[0-9a-f]{8}`, later)
	if later == former["the image"] {
		t.Errorf("two programs are %s", later)
	}

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
	changed := make(map[string]bool)
	for _, text := range []string{"changed", "changed again"} {
		shows(t, checkout, text)
		version := stamped()
		requireVersion(t, `v0\.1\.1-0\.\d{14}-[0-9a-f]{12}\+dirty\.[0-9a-f]{8}`, version)
		changed[version] = true
	}
	if len(changed) < 2 {
		t.Errorf("two programs are %v", changed)
	}
}

// newCheckout returns a small module with the path of this one, with this package and two commands.
func newCheckout(t *testing.T) string {
	dir := t.TempDir()
	text, err := os.ReadFile("version.go")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "internal", "base", "version", "version.go"), string(text))
	write(t, filepath.Join(dir, "go.mod"), "module "+module+"\n\ngo 1.26.0\n")
	write(t, filepath.Join(dir, ".gitignore"), "bin\n")
	shows(t, dir, "")
	for _, name := range []string{"caddy", "redlock"} {
		write(t, filepath.Join(dir, "cmd", name, "main.go"), mainOf("shown"))
	}
	return dir
}

// shows changes the programs of a checkout: they print the version, and this text, if there is any, where nobody reads it.
func shows(t *testing.T, checkout, text string) {
	write(t, filepath.Join(checkout, "shown", "shown.go"), "// Package shown prints the version.\npackage shown\n\nimport (\n\t\"fmt\"\n\t\"io\"\n\n\t\""+module+"/internal/base/version\"\n)\n\nfunc init() {\n\tfmt.Print(version.String())\n\tfmt.Fprint(io.Discard, \""+text+"\")\n}\n")
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
