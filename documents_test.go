package caddyredlock_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	caddyredlock "github.com/caddy-redlock/caddy-redlock"
)

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// table is one of docs/configuration.md: for each column the names in it, with the default that their rows give.
type table map[string]map[string]string

var inCode = regexp.MustCompile("`([\\w-]+)`")

// readTable returns the table behind a heading.
func readTable(t *testing.T, heading string) table {
	t.Helper()
	_, section, found := strings.Cut(readFile(t, "docs/configuration.md"), "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/configuration.md has no %s", heading)
	}
	var columns []string
	result := make(table)
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "#") {
			break
		}
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case columns == nil:
			columns = cells
			for _, column := range columns {
				result[column] = make(map[string]string)
			}
			continue
		case strings.HasPrefix(cells[0], "---"):
			continue
		case len(cells) != len(columns):
			t.Fatalf("%s: %d cells, want %d: %s", heading, len(cells), len(columns), line)
		}
		for i, column := range columns {
			if column == "value" || column == "default" || column == "meaning" {
				if cells[i] == "" {
					t.Errorf("%s: no %s in %s", heading, column, line)
				}
				continue
			}
			for _, name := range inCode.FindAllStringSubmatch(cells[i], -1) {
				result[column][name[1]] = cells[slices.Index(columns, "default")]
			}
		}
	}
	return result
}

// require compares the names in a column with those that exist.
func (tb table) require(t *testing.T, column string, exist []string) {
	t.Helper()
	documented := slices.Sorted(maps.Keys(tb[column]))
	for _, name := range exist {
		if !slices.Contains(documented, name) {
			t.Errorf("docs/configuration.md lacks %s in the column %s", name, column)
		}
	}
	for _, name := range documented {
		if !slices.Contains(exist, name) {
			t.Errorf("docs/configuration.md has %s in the column %s, which doesn't exist", name, column)
		}
	}
}

// fields returns the names of a struct's exported fields, or those of their tags, without what no user sets.
func fields(of any, tag string) (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeOf(of)) {
		name := field.Name
		if tag != "" {
			name, _, _ = strings.Cut(field.Tag.Get(tag), ",")
		}
		if field.IsExported() && !field.Anonymous && name != "-" && name != "source" {
			names = append(names, name)
		}
	}
	return names
}

// subdirectives returns those that a block of the Caddyfile may have, as the error for an unknown one lists them.
func subdirectives(t *testing.T, global, rule string) []string {
	t.Helper()
	config := "{\n" + global + "\n}\nhttp://127.0.0.1:1 {\n" + rule + "\n}\n"
	_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil)
	_, list, found := strings.Cut(fmt.Sprint(err), "want one of: ")
	if !found {
		t.Fatal("an unknown subdirective is accepted")
	}
	list, _, _ = strings.Cut(list, " at ")
	return strings.Split(strings.TrimRight(strings.TrimSpace(list), ","), ", ")
}

// options returns the functions With… of package redlock.
func options(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("redlock/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		for _, option := range regexp.MustCompile(`(?m)^func (With\w+)\(`).FindAllStringSubmatch(readFile(t, name), -1) {
			names = append(names, option[1])
		}
	}
	return names
}

// TestSettingsInDocuments: docs/configuration.md has every setting of Caddy, and no other.
func TestSettingsInDocuments(t *testing.T) {
	shared, rule, secure := readTable(t, "## The masters, and what all rules share"), readTable(t, "## A rule"), readTable(t, "### TLS")

	// Caddy
	shared.require(t, "Caddy", fields(caddyredlock.App{}, "json"))
	shared.require(t, "Caddy", subdirectives(t, "redlock {\nnone\n}", "redlock k:{path.1}"))
	rule.require(t, "Caddy", subdirectives(t, "", "redlock k:{path.1} {\nnone\n}"))
	secure.require(t, "JSON", fields(caddyredlock.TLS{}, "json"))
	secure.require(t, "Caddyfile", subdirectives(t, "redlock {\nmasters rediss://127.0.0.1:1\ntls {\nnone\n}\n}", "redlock k:{path.1}"))

	// Go, as far as it has what Caddy has: the documentation of the package lists the others
	exist := append(options(t), "NewMaster", "Open")
	for name := range shared["Go"] {
		if !slices.Contains(exist, name) {
			t.Errorf("docs/configuration.md has %s in the column Go, which doesn't exist", name)
		}
	}
}

func TestConfigurationsInDocuments(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "password")
	t.Setenv("GITHUB_SECRET", "secret")
	for _, file := range []string{"README.md", "docs/hosts.md", "docs/matchers.md", "docs/configuration.md", "docs/recipes.md"} {
		snippets := caddyfiles.FindAllStringSubmatch(readFile(t, file), -1)
		if len(snippets) == 0 {
			t.Errorf("%s has no Caddyfile", file)
		}
		for _, snippet := range snippets {
			_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(snippet[1]), map[string]any{"filename": file})
			if err != nil || len(warnings) > 0 {
				t.Errorf("%s: %v, %v in\n%s", file, err, warnings, snippet[1])
			}
		}
	}
	var config caddy.Config
	text := strings.NewReplacer("redis://10.0.0.", "memory://", ":6379", "").Replace(readFile(t, "examples/caddy.json")) // these would be dialed
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&config); err != nil {
		t.Fatalf("JSON: %v", err)
	}
	config.Admin = &caddy.AdminConfig{Disabled: true}
	if err := caddy.Validate(&config); err != nil {
		t.Errorf("JSON: %v", err)
	}
}

// TestMatchersInDocuments requires each rule that a reader may copy to serve what it isn't for, and to see what it is for: a key in the body
// needs a matcher that leaves out GET, unless the path is a webhook's or a request without a key passes; an exact path, and a query or a
// header by its name, have spellings that the matcher misses.
func TestMatchersInDocuments(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("REDLOCK_MASTERS", "redis://10.0.0.1:6379")
	t.Setenv("UPSTREAM", "app:8080")
	rules := 0
	for _, file := range append(files, "README.md", "xcaddy.md", "CONTRIBUTING.md", "deploy/README.md", "Caddyfile.example", "deploy/Caddyfile", "deploy/shop.Caddyfile", "deploy/chart/Caddyfile",
		"examples/traefik/Caddyfile", "examples/traefik/behind/Caddyfile") {
		all := []string{strings.Replace(readFile(t, file), "slow_backend", "# slow_backend", 1)} // which only cmd/caddy has
		if strings.HasSuffix(file, ".md") {
			all = nil
			for _, match := range caddyfiles.FindAllStringSubmatch(readFile(t, file), -1) {
				all = append(all, match[1])
			}
		}
		for _, text := range all {
			if strings.Contains(text, "redlock_require") { // what a matcher misses is refused
				continue
			}
			adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": file})
			if err != nil {
				t.Fatalf("%s: %v in\n%s", file, err, text)
			}
			var config any
			if err := json.Unmarshal(adapted, &config); err != nil {
				t.Fatal(err)
			}
			rules += requireMatchers(t, file, config, "null")
		}
	}
	if rules < 20 {
		t.Errorf("%d rules were found", rules)
	}
}

var (
	caddyfiles = regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$")
	readsBody  = regexp.MustCompile(`\{(json|form|body|payload)\.`)
	exactPath  = regexp.MustCompile(`"path":\[[^\]]*[^*]"[,\]]`)
	byName     = regexp.MustCompile(`"(query|header)":|\b(query|header)\(`)
)

// requireMatchers looks at the rules within a part of a configuration, and returns how many there are.
func requireMatchers(t *testing.T, file string, part any, match string) (rules int) {
	t.Helper()
	switch part := part.(type) {
	case []any:
		for _, each := range part {
			rules += requireMatchers(t, file, each, match)
		}
	case map[string]any:
		if own, ok := part["match"]; ok && part["handle"] != nil {
			text, err := json.Marshal(own)
			if err != nil {
				t.Fatal(err)
			}
			match = string(text)
		}
		for _, each := range part {
			rules += requireMatchers(t, file, each, match)
		}
		if part["handler"] != "redlock" {
			return rules
		}
		rules++
		keys, err := json.Marshal(part["key"])
		if err != nil {
			t.Fatal(err)
		}
		forEach := readsBody.Match(keys) && part["on_missing_key"] != "pass" && !strings.Contains(match, `"/webhooks/`)
		if forEach && !strings.Contains(match, `"not":[{"method":["GET","HEAD","OPTIONS"`) {
			t.Errorf("%s: the rule %s refuses each GET: %s", file, keys, match)
		}
		if exactPath.MatchString(match) || byName.MatchString(match) {
			t.Errorf("%s: the rule %s misses other spellings: %s", file, keys, match)
		}
	}
	return rules
}
