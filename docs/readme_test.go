package docs_test

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// snippets returns the code blocks of a document in a language.
func snippets(t *testing.T, file, language string) []string {
	t.Helper()
	var found []string
	for _, match := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(readFile(t, file), -1) {
		found = append(found, match[1])
	}
	if len(found) == 0 {
		t.Errorf("%s has no code in %s", file, language)
	}
	return found
}

// TestGoInREADME runs the Go of README in a program that has the rest.
func TestGoInREADME(t *testing.T) {
	file := filepath.Join(t.TempDir(), "main.go")
	text := strings.Replace(readFile(t, "test/trial/testdata/main.go.txt"), "\t// README\n", strings.Join(snippets(t, "README.md", "go"), ""), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := exec.Command("go", "run", file).CombinedOutput()
	if err != nil || !regexp.MustCompile(`^paid 42\nsent true\n$`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestGoInTesting requires the Go of docs/testing.md to be a test that runs.
func TestGoInTesting(t *testing.T) {
	for _, text := range snippets(t, "docs/testing.md", "go") {
		if !strings.Contains(readFile(t, "redlock/redlocktest/example_test.go"), "\n"+text) {
			t.Errorf("no such test in redlocktest:\n%s", text)
		}
	}
}

// TestBlocksInREADME requires each code block of README to be of a kind that tests run: configurations and programs here and in e2e, and
// these commands.
func TestBlocksInREADME(t *testing.T) {
	tested := []string{
		"go run ./cmd/caddy run --config Caddyfile.example",                                                                   // e2e: TestREADMECurls
		"go install github.com/caddy-redlock/caddy-redlock/cmd/redlock@latest",                                                // e2e: TestREADMEModule
		"docker run --rm --network host -v ./Caddyfile.example:/etc/redlock/Caddyfile:ro ghcr.io/caddy-redlock/caddy-redlock", // TestDockerInREADME
	}
	for _, command := range slices.Concat(snippets(t, "docs/agent.md", "sh"), snippets(t, "docs/jobs.md", "sh")) { // clients: TestAgentDocument; cmd/redlock: TestJobsDocument
		for line := range strings.Lines(command) {
			tested = append(tested, strings.TrimSpace(line))
		}
	}
	for i, block := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(readFile(t, "README.md"), -1) {
		switch language, text := block[1], block[2]; language {
		case "caddyfile", "go": // e2e: TestREADMECaddyfile; TestGoInREADME
		case "sh":
			if strings.Contains(text, "redlock run ") && !strings.Contains(text, "export REDLOCK_MASTERS=") {
				t.Errorf("README runs redlock without masters:\n%s", text)
			}
			for line := range strings.Lines(text) {
				command, _, _ := strings.Cut(line, " #")
				command = strings.TrimSuffix(strings.TrimSpace(command), " &")
				curl := i == 1 && strings.HasPrefix(command, "curl ") // e2e: TestREADMECurls
				if comment := strings.HasPrefix(line, "#"); !comment && !curl && !slices.Contains(tested, command) {
					t.Errorf("README has a command that no test runs: %s", command)
				}
			}
		default:
			t.Errorf("README has a block of %q that no test reads:\n%s", language, text)
		}
	}
}

// TestDockerInREADME compares docker run with what the image will be, because there is none before 0.1.0. TestTrial in test/trial runs
// what it does: Caddy with this configuration.
func TestDockerInREADME(t *testing.T) {
	readme := readFile(t, "README.md")
	line := regexp.MustCompile(`(?m)^docker run --rm --network host -v \./(\S+):(\S+):ro (\S+)$`).FindStringSubmatch(readme)
	if line == nil {
		t.Fatal("README has no docker run")
	}
	if _, err := os.Stat(line[1]); err != nil {
		t.Error(err)
	}
	release := readFile(t, ".goreleaser.yaml")
	for _, want := range []string{"images: [" + line[3] + "]", "{{ if not .Prerelease }}latest{{ end }}", "dockerfile: deploy/release.Dockerfile"} {
		if !strings.Contains(release, want) {
			t.Errorf(".goreleaser.yaml has no %s", want)
		}
	}
	for _, file := range []string{"deploy/release.Dockerfile", "deploy/Dockerfile"} {
		for _, want := range []string{"\nENTRYPOINT [\"/usr/bin/caddy\"]\n", `CMD ["run", "--config", "` + line[2] + `"]`, "/caddy /usr/bin/caddy\n"} {
			if !strings.Contains(readFile(t, file), want) {
				t.Errorf("%s has no %s", file, want)
			}
		}
	}
	if !strings.Contains(readme, "go run ./cmd/caddy run --config "+line[1]+" ") {
		t.Error("go run and docker run have different configurations")
	}
	if unreleased := strings.Contains(readFile(t, "CHANGELOG.md"), "\n## [0.1.0] - unreleased\n"); unreleased != strings.Contains(readme, "Docker on Linux from 0.1.0 on") {
		t.Errorf("0.1.0 is unreleased: %v, and README says otherwise", unreleased)
	}
}

// TestRecordingInREADME requires the recorded terminal to have the commands that README says, which e2e runs; make images records it.
func TestRecordingInREADME(t *testing.T) {
	var commands, recorded []string
	for line := range strings.Lines(snippets(t, "README.md", "sh")[1]) {
		if strings.HasPrefix(line, "curl ") {
			commands = append(commands, "$ "+strings.TrimSpace(line))
		}
	}
	for _, line := range regexp.MustCompile(`<text class="\w+ command"[^>]*>(.*)</text>`).FindAllStringSubmatch(readFile(t, "docs/images/try.svg"), -1) {
		recorded = append(recorded, html.UnescapeString(line[1]))
	}
	if !slices.Equal(recorded, commands) || !strings.Contains(readFile(t, "README.md"), "](docs/images/try.svg)") {
		t.Errorf("README has\n%q\nand docs/images/try.svg\n%q", commands, recorded)
	}
}

// TestACLInDocuments works with the rights that docs/masters.md lists. A test of package redlock shows that each of them is needed.
func TestACLInDocuments(t *testing.T) {
	line := regexp.MustCompile(`(?m)^ACL SETUSER redlock .*$`).FindString(readFile(t, "docs/masters.md"))
	server := redistest.Start(t, 1)[0]
	var command []any
	for _, word := range strings.Fields(line) {
		command = append(command, word)
	}
	allow := func(command ...any) {
		t.Helper()
		if err := server.Client().Do(t.Context(), command...).Err(); err != nil {
			t.Fatalf("%q: %v", command, err)
		}
	}
	allow(command...)
	url := strings.Replace(server.URL(), "redis://", "redis://redlock:password@", 1)
	var log bytes.Buffer // read after Close
	l, err := redlock.Open([]string{url}, redlock.WithRestartGuard(0), redlock.WithTimeout(5*time.Second),
		redlock.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := l.TryLock(t.Context(), "order:42")
	if err != nil {
		t.Fatalf("%s is not enough: %v", line, err)
	}
	if _, held := l.TryLock(t.Context(), "order:42"); !errors.Is(held, redlock.ErrHeld) {
		t.Errorf("a second lock: %v", held)
	}
	for until, deadline := lock.Until(), time.Now().Add(20*time.Second); !lock.Until().After(until); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the lease is not renewed")
		}
	}
	if err := errors.Join(lock.Unlock(), l.Close()); err != nil || log.String() != "" {
		t.Errorf("%s is not enough: %v; log: %s", line, err, log.String())
	}
}

// TestPresetsInDocuments requires docs/presets.md to have each preset as it is, but for its key, whose template nobody can read, and no other.
func TestPresetsInDocuments(t *testing.T) {
	_, text, _ := strings.Cut(readFile(t, "docs/presets.md"), "\n## ")
	documented := make(map[string]string)
	for _, section := range strings.Split(text, "\n## ") {
		name, section, _ := strings.Cut(section, "\n")
		documented[name] = section
	}
	if names := slices.Sorted(maps.Keys(documented)); !slices.Equal(names, engine.Presets()) {
		t.Errorf("docs/presets.md has %v, there are %v", names, engine.Presets())
	}
	for name, section := range documented {
		preset, err := engine.PresetOf(name)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"- key: ", "- dedupe `" + preset.Dedupe + "`", "- wait " + preset.Wait.String()}
		if preset.IdempotencyKey {
			want = []string{"`idempotency_key required`", "`" + preset.Scope + "`", fmt.Sprintf("remember %.0fh", preset.Remember.Hours())}
		}
		if preset.MaxBody > 0 {
			want = append(want, fmt.Sprintf("max_body %dMiB", preset.MaxBody>>20))
		}
		for _, want := range want {
			if !strings.Contains(section, want) {
				t.Errorf("docs/presets.md, %s: no %s", name, want)
			}
		}
	}
}
