package caddyredlock_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	caddyredlock "github.com/caddy-redlock/caddy-redlock"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
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
	_, list, found := strings.Cut(fmt.Sprint(validate(global, rule)), "want one of: ")
	if !found {
		t.Fatal("an unknown subdirective is accepted")
	}
	list, _, _ = strings.Cut(list, " at ")
	return strings.Split(strings.TrimRight(strings.TrimSpace(list), ","), ", ")
}

// docs returns the comments of the functions With… of a package, or of the fields of a struct, by its name or that of the tag.
func docs(t *testing.T, dir, structure, tag string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.FuncDecl:
				if structure == "" && node.Recv == nil && strings.HasPrefix(node.Name.Name, "With") {
					found[node.Name.Name] = node.Doc.Text()
				}
			case *ast.TypeSpec:
				if s, ok := node.Type.(*ast.StructType); ok && node.Name.Name == structure {
					for _, field := range s.Fields.List {
						name := ""
						if len(field.Names) > 0 && field.Names[0].IsExported() {
							name = field.Names[0].Name
						}
						if tag != "" && field.Tag != nil {
							name, _, _ = strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get(tag), ",")
						}
						if name != "" && name != "source" {
							found[name] = field.Doc.Text()
						}
					}
				}
			}
			return true
		})
	}
	if len(found) == 0 {
		t.Fatalf("%s has no %s", dir, structure)
	}
	return found
}

// concrete is what a default can be compared by: a number at its beginning, a quantity anywhere, or a word that is a value.
var concrete = regexp.MustCompile(`^\d+\b(?: ?(?:ms|min|MiB|s|m)\b)?|\b\d+ ?(?:ms|min|MiB|s|m)\b|Fencing-Token|\brefuse\b|"redlock"`)

// values returns the values in the text of a default, written in one way.
func values(text string) (found []string) {
	for _, value := range concrete.FindAllString(text, -1) {
		found = append(found, strings.Trim(strings.Replace(strings.ReplaceAll(value, " ", ""), "min", "m", 1), `"`))
	}
	return found
}

// requireDefaults requires the values in the default that a comment gives to be in the row of the setting.
func (tb table) requireDefaults(t *testing.T, column string, comments map[string]string) {
	t.Helper()
	for name, comment := range comments {
		documented, ok := tb[column][name]
		if !ok {
			continue // which require reports
		}
		_, text, found := strings.Cut(strings.ReplaceAll(comment, "\n", " "), "Default: ")
		if !found {
			if documented != "required, or the preset's" && documented != "the system's" {
				t.Errorf("the comment of %s names no default, docs/configuration.md has %q", name, documented)
			}
			continue
		}
		text, _, _ = strings.Cut(text, ". ")
		if exact := regexp.MustCompile(`^\d+ \((.*)\)`).FindStringSubmatch(text); exact != nil { // 1048576 (1 MiB)
			text = exact[1]
		}
		known := values(strings.ReplaceAll(documented, "`", ""))
		for _, value := range values(text) {
			if !slices.Contains(known, value) && !strings.Contains(documented, value) {
				t.Errorf("%s: the default is %q in its comment, and %q in docs/configuration.md", name, text, documented)
			}
		}
		if off := strings.HasPrefix(text, "false"); off != strings.HasPrefix(documented, "off") && strings.HasPrefix(comment, "Whether") && !strings.HasPrefix(text, "true with a preset") {
			t.Errorf("%s: the default is %q in its comment, and %q in docs/configuration.md", name, text, documented)
		}
	}
}

// TestSettingsInDocuments: docs/configuration.md has every setting of every host, with its default, and no other.
func TestSettingsInDocuments(t *testing.T) {
	shared, rule, secure, lock := readTable(t, "## The masters, and what all rules share"), readTable(t, "## A rule"), readTable(t, "### TLS"), readTable(t, "## One lock of the library")

	// Caddy
	shared.require(t, "Caddy", fields(caddyredlock.App{}, "json"))
	shared.require(t, "Caddy", subdirectives(t, "redlock {\nnone\n}", "redlock k:{path.1}"))
	rule.require(t, "Caddy", subdirectives(t, "", "redlock k:{path.1} {\nnone\n}"))
	secure.require(t, "JSON", fields(caddyredlock.TLS{}, "json"))
	secure.require(t, "Caddyfile", subdirectives(t, "redlock {\nmasters rediss://127.0.0.1:1\ntls {\nnone\n}\n}", "redlock k:{path.1}"))
	shared.requireDefaults(t, "Caddy", docs(t, ".", "App", "json"))
	secure.requireDefaults(t, "JSON", docs(t, ".", "TLS", "json"))

	// Go. Some options are of the Locker and of each lock.
	library := docs(t, "redlock", "", "")
	both := table{"Go": maps.Clone(shared["Go"])}
	maps.Copy(both["Go"], lock["Go"])
	for _, name := range []string{"NewMaster", "Open", "Dial"} {
		delete(both["Go"], name)
	}
	both.require(t, "Go", slices.Collect(maps.Keys(library)))
	both.requireDefaults(t, "Go", library)

	// what the comments say
	for name, want := range map[string]string{
		"timeout":     redlock.DefaultTimeout.String(),
		"key_prefix":  redlock.DefaultPrefix,
		"max_ttl":     redlock.DefaultMaxTTL.String(),
		"max_skew":    redlock.DefaultMaxSkew.String(),
		"body_budget": fmt.Sprint(middleware.DefaultBodyBudget>>20, "MiB"),
	} {
		if got := shared["Caddy"][name]; !slices.Contains(values(got), want) && strings.Trim(got, "`") != want {
			t.Errorf("docs/configuration.md: the default of %s is %s, not %s", name, want, got)
		}
	}
	for name, want := range map[string]string{
		"ttl":         redlock.DefaultTTL.String(),
		"max_hold":    strings.TrimSuffix(middleware.DefaultMaxHold.String(), "0s"),
		"max_waiters": fmt.Sprint(redlock.DefaultMaxWaiters),
	} {
		if got := rule["Caddy"][name]; !slices.Contains(values(got), want) {
			t.Errorf("docs/configuration.md: the default of %s is %s, not %s", name, want, got)
		}
	}
}

// TestConfigurationSnippets: the Go in docs/configuration.md is that of an example that runs.
func TestConfigurationSnippets(t *testing.T) {
	for _, snippet := range snippets(t, "docs/configuration.md", "go") {
		if !strings.Contains(readFile(t, "redlock/secure_test.go"), snippet) {
			t.Errorf("not in redlock/secure_test.go:\n%s", snippet)
		}
	}
}
