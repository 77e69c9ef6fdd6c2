package traefik

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"
)

// TestYaegiRunsIt type-checks the package by the standard library alone, and looks for what Yaegi 0.16 is known to get wrong.
func TestYaegiRunsIt(t *testing.T) {
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var sources []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, file)
		for _, imported := range file.Imports {
			if first, _, _ := strings.Cut(imported.Path.Value, "/"); strings.Contains(first, ".") || imported.Path.Value == `"C"` || imported.Path.Value == `"embed"` || imported.Path.Value == `"unsafe"` {
				t.Errorf("%v: imports %s", files.Position(imported.Pos()), imported.Path.Value)
			}
		}
	}
	info := &types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: importer.ForCompiler(files, "source", nil)}
	if _, err := config.Check("traefik", files, sources, info); err != nil {
		t.Fatal(err)
	}
	for _, file := range sources {
		ast.Inspect(file, func(n ast.Node) bool {
			if what := trap(n, info); what != "" {
				t.Errorf("%v: %s", files.Position(n.Pos()), what)
			}
			return true
		})
	}
}

// trap returns what Yaegi is known to get wrong about a piece of code, or "".
func trap(n ast.Node, info *types.Info) string {
	switch n := n.(type) {
	case *ast.SwitchStmt:
		for _, clause := range n.Body.List {
			if n.Tag == nil && len(clause.(*ast.CaseClause).List) > 1 {
				return "of several conditions in a case only the first counts: write ||"
			}
		}
	case *ast.RangeStmt:
		switch kind := info.Types[n.X].Type.Underlying().(type) {
		case *types.Basic:
			if kind.Info()&types.IsInteger != 0 {
				return "ranges over a number"
			}
		case *types.Signature:
			return "ranges over a function"
		}
		return startsGoroutine(n.Body)
	case *ast.ForStmt:
		return startsGoroutine(n.Body)
	case *ast.AssignStmt:
		if len(n.Lhs) > 1 && len(n.Lhs) == len(n.Rhs) && n.Tok == token.ASSIGN {
			for _, to := range n.Lhs {
				if _, field := to.(*ast.SelectorExpr); field {
					return "assigns several fields at once, of which some are lost"
				}
			}
		}
	case *ast.FuncType:
		if n.TypeParams != nil {
			return "has type parameters"
		}
	case *ast.Ident:
		if builtin, ok := info.Uses[n].(*types.Builtin); ok && (builtin.Name() == "min" || builtin.Name() == "max" || builtin.Name() == "clear") {
			return "calls the built-in " + builtin.Name()
		}
	}
	return ""
}

func startsGoroutine(body *ast.BlockStmt) (what string) {
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.GoStmt); ok {
			what = "a go statement in a loop sees the last variable of it"
		}
		return what == ""
	})
	return what
}
