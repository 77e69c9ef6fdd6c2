package middleware_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// TestSettings requires the table of docs/configuration.md to be what the comments of a rule's fields say first.
func TestSettings(t *testing.T) {
	t.Parallel()
	const document, head = "../docs/configuration.md", "\n| Caddy | default | meaning |\n| --- | --- | --- |\n"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, section, _ := strings.Cut(string(text), "\n## A rule\n")
	intro, table, found := strings.Cut(section, head)
	_, rest, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatalf("%s has no table of a rule", document)
	}
	doc := before + "\n## A rule\n" + intro + head + strings.Join(settingRows(t), "\n") + "\n\n" + rest
	if *update {
		if err := os.WriteFile(document, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if doc != string(text) {
		t.Errorf("%s is not up to date: run go test ./middleware -run TestSettings -update", document)
	}
}

func settingRows(t *testing.T) (rows []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "rule.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := make(map[string]string)
	ast.Inspect(parsed, func(node ast.Node) bool {
		if spec, ok := node.(*ast.TypeSpec); ok && spec.Name.Name == "Rule" {
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				text, _, _ := strings.Cut(field.Doc.Text(), "\n\n") // the details are godoc's alone
				comments[field.Names[0].Name] = strings.Join(strings.Fields(text), " ")
			}
		}
		return true
	})
	for field := range reflect.TypeFor[middleware.Rule]().Fields() {
		meaning, standard, found := strings.Cut(comments[field.Name], " Default: ")
		if !found || !strings.HasSuffix(standard, ".") {
			t.Errorf("the comment of %s doesn't end with its default: %s", field.Name, comments[field.Name])
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue // Go alone has it
		}
		meaning = regexp.MustCompile(`docs/([a-z/]+\.md)(#[\w-]+)?`).ReplaceAllString(meaning, "[$1]($1$2)")
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", name, strings.TrimSuffix(standard, "."), meaning))
	}
	return rows
}

// TestHooks: what a rule has beside its settings, the module for Caddy and the agent set, or say here why not.
func TestHooks(t *testing.T) {
	t.Parallel()
	for file, without := range map[string]string{
		"../caddymodule.go": "",
		// The request that a gateway describes has its client's address and URL, and the agent sees no responses.
		"../agent/rules.go": "ClientAddress Finished OnReplay OriginalURL Sealer User",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		set := make(map[string]bool)
		ast.Inspect(parsed, func(node ast.Node) bool {
			if assigned, ok := node.(*ast.AssignStmt); ok {
				for _, to := range assigned.Lhs {
					if field, ok := to.(*ast.SelectorExpr); ok {
						set[field.Sel.Name] = true
					}
				}
			}
			return true
		})
		var lacks []string
		for field := range reflect.TypeFor[middleware.Rule]().Fields() {
			if field.Tag.Get("json") == "-" && !set[field.Name] {
				lacks = append(lacks, field.Name)
			}
		}
		slices.Sort(lacks)
		if got := strings.Join(lacks, " "); got != without {
			t.Errorf("%s doesn't set %q of a rule, want %q", file, got, without)
		}
	}
}
