package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is a file that has mutants.
type source struct {
	file, content string
	tree          *ast.File // nil for a script
	edits         map[place][]edit
}

// place is where a mutant is: a function of a file; none of a script.
type place struct {
	function *ast.FuncDecl
	mutant   string
}

func load(file string) (*source, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &source{file: file, content: string(content), edits: make(map[place][]edit)}
	if filepath.Ext(file) == ".go" {
		s.tree, err = parser.ParseFile(token.NewFileSet(), "", content, parser.SkipObjectResolution)
	}
	return s, err
}

// add notes an edit. The file has the old text once, in a function.
func (s *source) add(mutant string, e edit) error {
	if n := strings.Count(s.content, e.old); n != 1 {
		return fmt.Errorf("the file has this %d times, and not once:\n%s", n, e.old)
	}
	if s.tree == nil {
		s.edits[place{nil, mutant}] = append(s.edits[place{nil, mutant}], e)
		return nil
	}
	at := token.Pos(strings.Index(s.content, e.old) + 1)
	for _, d := range s.tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil && f.Body.Lbrace < at && at < f.End() {
			s.edits[place{f, mutant}] = append(s.edits[place{f, mutant}], e)
			return nil
		}
	}
	return errors.New("this is in no function's body")
}

// text returns the file with a second version of a function for each mutant, which the function calls while that is tried.
func (s *source) text() string {
	heads, versions := make(map[*ast.FuncDecl]string), ""
	for _, p := range s.places() {
		f, edits, name := p.function, s.edits[p], fmt.Sprint(p.function.Name.Name, "Mutant", p.mutant)
		version := s.content[f.Pos()-1 : f.End()-1]
		for _, e := range edits {
			version = strings.Replace(version, e.old, e.new, 1)
		}
		at := int(f.Name.Pos() - f.Pos())
		versions += "\n" + version[:at] + name + version[at+len(f.Name.Name):] + "\n"
		if f.Recv != nil {
			name = f.Recv.List[0].Names[0].Name + "." + name
		}
		var args []string
		for _, field := range f.Type.Params.List {
			for _, arg := range field.Names {
				args = append(args, s.argument(arg.Name, field.Type))
			}
		}
		call := name + "(" + strings.Join(args, ", ") + ")"
		if f.Type.Results != nil {
			call = "return " + call
		} else {
			call += "; return"
		}
		heads[f] += " if mutantOf == \"" + p.mutant + "\" { " + call + " };"
	}
	text := s.content
	for _, f := range slices.SortedFunc(maps.Keys(heads), func(a, b *ast.FuncDecl) int { return int(b.Pos() - a.Pos()) }) {
		text = text[:f.Body.Lbrace] + heads[f] + text[f.Body.Lbrace:]
	}
	return text + versions
}

// places are where mutants are, in an order that is the same each time: what has been compiled is found again.
func (s *source) places() []place {
	return slices.SortedFunc(maps.Keys(s.edits), func(a, b place) int { return strings.Compare(a.mutant, b.mutant) })
}

// argument passes on a parameter.
func (s *source) argument(name string, of ast.Expr) string {
	if name == "_" {
		return "*new(" + s.content[of.Pos()-1:of.End()-1] + ")"
	} else if _, variadic := of.(*ast.Ellipsis); variadic {
		return name + "..."
	}
	return name
}

// scripts returns the code that changes a script, which is in a variable: that of slots.lua is slotsSource.
func (s *source) scripts() (code string) {
	if s.tree != nil {
		return ""
	}
	name := strings.TrimSuffix(filepath.Base(s.file), ".lua") + "Source"
	for _, p := range s.places() {
		for _, e := range s.edits[p] {
			code += fmt.Sprintf("if mutantOf == %q { %s = strings.Replace(%s, %q, %q, 1) }\n", p.mutant, name, name, e.old, e.new)
		}
	}
	return code
}
