package docs_test

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	caddyredlock "github.com/caddy-redlock/caddy-redlock"
)

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
	for _, name := range goList(t, "-f", "{{range .GoFiles}}redlock/{{.}} {{end}}", "./redlock") {
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
	exist := append(options(t), "NewMaster", "Open", "Dial", "DialTLS")
	for name := range shared["Go"] {
		if !slices.Contains(exist, name) {
			t.Errorf("docs/configuration.md has %s in the column Go, which doesn't exist", name)
		}
	}
}
