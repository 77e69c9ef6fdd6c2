package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"reflect"
	"strings"
	"testing"
)

// TestCommentsOfModules: Caddy's website has a page for each module that is registered with a literal, and makes it from the
// comments of its type and of the fields that its JSON has.
func TestCommentsOfModules(t *testing.T) {
	registered := make(map[string]bool)
	types := make(map[string]*ast.GenDecl)
	files, _ := tree(t)
	for _, name := range files {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/") && !strings.HasPrefix(name, "middleware/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			call, _ := node.(*ast.CallExpr)
			if call == nil {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "RegisterModule" {
				return true
			}
			literal, _ := call.Args[0].(*ast.CompositeLit)
			if literal == nil {
				t.Errorf("%s registers a module that is no literal", name)
				return true
			}
			registered[literal.Type.(*ast.Ident).Name] = true
			return true
		})
		for _, declaration := range parsed.Decls {
			if d, ok := declaration.(*ast.GenDecl); ok && d.Tok == token.TYPE {
				for _, spec := range d.Specs {
					types[spec.(*ast.TypeSpec).Name.Name] = d
				}
			}
		}
	}
	for name := range registered {
		if types[name].Doc.Text() == "" {
			t.Errorf("module %s has no comment", name)
		}
	}
	if !registered["App"] || !registered["Handler"] || !registered["Guard"] {
		t.Errorf("registered: %v", registered)
	}
	commented := 0
	for _, name := range []string{"App", "Handler", "Guard", "TLS", "Rule", "Verify"} {
		for _, spec := range types[name].Specs {
			structure, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType)
			if !ok || spec.(*ast.TypeSpec).Name.Name != name {
				continue
			}
			for _, field := range structure.Fields.List {
				if field.Tag == nil || len(field.Names) == 0 {
					continue
				}
				if tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"); tag == "" || tag == "-" {
					continue
				}
				if field.Doc.Text() == "" {
					t.Errorf("%s.%s has no comment", name, field.Names[0])
				}
				commented++
			}
		}
	}
	if commented < 30 {
		t.Errorf("%d fields", commented)
	}
}

// TestPackageExamples: pkg.go.dev shows the example of a package before those of its functions.
func TestPackageExamples(t *testing.T) {
	files, _ := tree(t)
	for _, folder := range []string{"console", "metrics", "middleware", "redlock"} {
		found := false
		for _, name := range files {
			found = found || path.Dir(name) == folder && strings.HasSuffix(name, "_test.go") && strings.Contains(readFile(t, name), "\nfunc Example() {\n")
		}
		if !found {
			t.Errorf("package %s has no example", folder)
		}
	}
}
