package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// TestWayOfARequest requires each function in the picture of docs/DESIGN.md to be in its file, and to name those that the picture has it
// call.
func TestWayOfARequest(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "docs/DESIGN.md"), "\n## The way of a request\n")
	_, picture, _ := strings.Cut(section, "\n```\n")
	picture, _, found := strings.Cut(picture, "\n```\n")
	if !found {
		t.Fatal("docs/DESIGN.md has no picture")
	}
	type step struct {
		depth int
		line  string
		names map[string]bool // the identifiers in the function
	}
	var above []step
	for line := range strings.Lines(picture) {
		match := regexp.MustCompile(`^((?:  )*)(\w+) +(\S+\.go)\b`).FindStringSubmatch(line)
		if match == nil {
			if line != "\n" {
				t.Errorf("not a function and its file: %s", line)
			}
			continue
		}
		depth, name := len(match[1]), match[2]
		for len(above) > 0 && above[len(above)-1].depth >= depth {
			above = above[:len(above)-1]
		}
		if len(above) > 0 && !above[len(above)-1].names[name] {
			t.Errorf("%s is not called in %s", name, above[len(above)-1].line)
		}
		names := identifiersIn(t, match[3], name)
		if names == nil {
			t.Errorf("%s has no function %s", match[3], name)
		}
		above = append(above, step{depth, strings.TrimSpace(line), names})
	}
}

// identifiersIn returns the identifiers in the bodies of the functions of this name in a file, or nil if there is none.
func identifiersIn(t *testing.T, file, name string) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names map[string]bool
	for _, declaration := range parsed.Decls {
		if f, ok := declaration.(*ast.FuncDecl); ok && f.Name.Name == name {
			if names == nil {
				names = make(map[string]bool)
			}
			ast.Inspect(f.Body, func(node ast.Node) bool {
				if id, ok := node.(*ast.Ident); ok {
					names[id.Name] = true
				}
				return true
			})
		}
	}
	return names
}

// TestStatesOfACall requires each state of a call to be in the picture of docs/DESIGN.md.
func TestStatesOfACall(t *testing.T) {
	_, picture, _ := strings.Cut(readFile(t, "docs/DESIGN.md"), "\nA **call** (")
	picture, _, _ = strings.Cut(picture, "\n1. ")
	_, states, _ := strings.Cut(readFile(t, "redlock/call.go"), "entering ")
	states, _, _ = strings.Cut("\tentering "+states, "\n)\n")
	for line := range strings.Lines(states) {
		if state := strings.Fields(line)[0]; !strings.Contains(picture, state) {
			t.Errorf("the picture lacks %s", state)
		}
	}
}
