package traefik_test

import (
	"image/png"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/test/plugintest"
	"github.com/caddy-redlock/caddy-redlock/traefik"
)

// TestCatalog reads what Traefik's catalog does: its test data load where there is no agent, and the icon is an image.
func TestCatalog(t *testing.T) {
	text, err := os.ReadFile("../../.traefik.yml")
	if err != nil {
		t.Fatal(err)
	}
	head, data, _ := strings.Cut(string(text), "\ntestData:\n")
	icon, err := os.Open(filepath.Join("../..", fields(head)["iconPath"].(string)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = icon.Close() }()
	if _, err := png.Decode(icon); err != nil {
		t.Errorf("the icon: %v", err)
	}
	settings := fields(data)
	config := traefik.CreateConfig()
	if settings["agent"] != config.Agent || settings["key"] == nil {
		t.Errorf("the test data are %v", settings)
	}
	settings["agent"] = "unix:" + filepath.Join(t.TempDir(), "none") // on this machine one may listen at the default
	plugintest.Logged(t)
	plugintest.Fill(reflect.ValueOf(config), settings)
	if _, err := traefik.New(t.Context(), http.NotFoundHandler(), config, "catalog"); err != nil {
		t.Errorf("the test data don't load without an agent: %v", err)
	}
}

// TestShownSettings loads what README and docs/traefik.md show, where there is no agent.
func TestShownSettings(t *testing.T) {
	for _, file := range []string{"../../README.md", "../../docs/traefik.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		shown := regexp.MustCompile(`redlock: \{ (key: .*) \}`).FindSubmatch(text)
		if shown == nil {
			t.Fatalf("%s shows no settings", file)
		}
		config, settings := traefik.CreateConfig(), fields(strings.ReplaceAll(string(shown[1]), ", ", "\n"))
		settings["agent"] = "unix:" + filepath.Join(t.TempDir(), "none")
		plugintest.Logged(t)
		plugintest.Fill(reflect.ValueOf(config), settings)
		if _, err := traefik.New(t.Context(), http.NotFoundHandler(), config, "shown"); err != nil || len(settings) < 3 {
			t.Errorf("%s: %v: %v", file, settings, err)
		}
	}
}

// fields reads lines of YAML that have a name and a text.
func fields(text string) map[string]any {
	fields := map[string]any{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			fields[name] = strings.Trim(value, `"`)
		}
	}
	return fields
}
