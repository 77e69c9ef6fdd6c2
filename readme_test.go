package caddyredlock_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
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

// TestProgramsInREADME vets each whole program of README as it would be pasted, and runs those that are no server, on masters
// in memory.
func TestProgramsInREADME(t *testing.T) {
	ran := 0
	for i, snippet := range snippets(t, "README.md", "go") {
		if !isProgram(snippet) {
			continue
		}
		file := filepath.Join(t.TempDir(), "main.go")
		text := strings.NewReplacer("redis://10.0.0.", "memory://", ":6379", "").Replace(snippet)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		commands := []string{"vet"}
		if !strings.Contains(snippet, "net/http") {
			commands = append(commands, "run")
			ran++
		}
		for _, command := range commands {
			if out, err := exec.Command("go", command, file).CombinedOutput(); err != nil {
				t.Errorf("Go snippet %d of README: go %s: %v\n%s", i+1, command, err, out)
			}
		}
	}
	if ran == 0 {
		t.Error("README shows no whole program that uses the library")
	}
}

func isProgram(snippet string) bool { return strings.HasPrefix(snippet, "package main\n") }

// TestGoInREADME requires each Go snippet of README to be part of a file that is compiled and tested. Whole programs have tests
// of their own.
func TestGoInREADME(t *testing.T) {
	var compiled strings.Builder
	err := filepath.WalkDir("examples", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			compiled.WriteString(readFile(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, snippet := range snippets(t, "README.md", "go") {
		if !isProgram(snippet) && !strings.Contains(compiled.String(), snippet) {
			t.Errorf("in no file of examples:\n%s", snippet)
		}
	}
}

func TestConfigurationsInDocuments(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "password")
	t.Setenv("GITHUB_SECRET", "secret")
	for _, file := range []string{"README.md", "xcaddy.md", "docs/hosts.md", "docs/keys.md", "docs/configuration.md"} {
		for _, snippet := range snippets(t, file, "caddyfile") {
			_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(snippet), map[string]any{"filename": file})
			if err != nil || len(warnings) > 0 {
				t.Errorf("%s: %v, %v in\n%s", file, err, warnings, snippet)
			}
		}
	}
	for _, snippet := range snippets(t, "xcaddy.md", "json") {
		var config caddy.Config
		snippet = strings.NewReplacer("redis://10.0.0.", "memory://", ":6379", "").Replace(snippet) // these would be dialed
		decoder := json.NewDecoder(strings.NewReader(snippet))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&config); err != nil {
			t.Errorf("JSON: %v", err)
			continue
		}
		config.Admin = &caddy.AdminConfig{Disabled: true}
		if err := caddy.Validate(&config); err != nil {
			t.Errorf("JSON: %v", err)
		}
	}
}

// TestACLInREADME works with the rights that README lists. A test of package redlock shows that each of them is needed.
func TestACLInREADME(t *testing.T) {
	line := regexp.MustCompile(`(?m)^ACL SETUSER redlock .*$`).FindString(readFile(t, "README.md"))
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
	l, err := redlock.Open([]string{url}, redlock.WithRestartGuard(0), redlock.WithTimeout(time.Second), redlock.WithTTL(2*time.Second),
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

// TestOutcomesInDocuments requires a section for each outcome in docs/problems.md.
func TestOutcomesInDocuments(t *testing.T) {
	for _, outcome := range []string{"held", "no_quorum", "missing_key", "bad_key", "lost", "replayed", "mismatch", "missing_id", "too_large", "canceled", "stopping", "failed",
		"duplicate", "bad_signature", "upgrade", "body_too_large", "unsupported_body", "body_timeout", "body_budget", "dry_run"} {
		if !strings.Contains(readFile(t, "docs/problems.md"), "\n## "+outcome+"\n") {
			t.Errorf("docs/problems.md has no section %s", outcome)
		}
	}
}

// TestPresetsInDocuments requires docs/presets.md to have each preset as it is.
func TestPresetsInDocuments(t *testing.T) {
	text := readFile(t, "docs/presets.md")
	for _, sender := range []string{"stripe", "github", "shopify", "paypal", "adyen", "twilio", "slack", "square", "standard-webhooks"} {
		preset, err := middleware.LookupPreset(sender)
		if err != nil {
			t.Fatal(err)
		}
		_, section, _ := strings.Cut(text, "\n## "+sender+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, want := range []string{"key `" + preset.Key + "`", "dedupe `" + preset.Dedupe + "`", "wait " + preset.Wait.String()} {
			if !strings.Contains(section, want) {
				t.Errorf("docs/presets.md, %s: no %s", sender, want)
			}
		}
	}
}
