package fields

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// nameStep is one step in the name of a field of a form or query: order[items][0] has three.
type nameStep struct {
	text     string
	any      bool // an element of a list, whatever its index
	optional bool // the index of a list, which items[] leaves out
}

// namePaths returns all paths under which some reader finds a field: order.id is a path to one of them, and order_id to PHP.
func (f *Field) namePaths() [][]nameStep {
	var nested, php []nameStep
	for i, s := range f.path {
		if s.each {
			nested, php = append(nested, nameStep{any: true, optional: true}), append(php, nameStep{any: true, optional: true})
			continue
		}
		var name Name
		name.Set([]byte(s.name))
		for part := range strings.SplitSeq(string(name.Nested), ".") {
			nested = append(nested, nameStep{text: part, optional: s.index >= 0})
		}
		step := nameStep{text: string(name.PHP), optional: s.index >= 0 && i > 0}
		if i > 0 {
			step.text = strings.ToLower(s.name)
		}
		php = append(php, step)
	}
	paths := [][]nameStep{nested, php}
	if len(f.path) > 1 && !f.each {
		var flat Name
		flat.Set([]byte(f.name))
		paths = append(paths, []nameStep{{text: string(flat.PHP)}})
	}
	return paths
}

// nested returns the name of a field as Rails, PHP and Express write it: order[id].
func (f *Field) nested() string {
	name := f.path[0].name
	for _, s := range f.path[1:] {
		name += "[" + s.name + "]"
	}
	return name
}

// Name is a name as different readers understand it, written as paths whose steps are separated by dots.
type Name struct {
	Nested []byte // every bracket and dot separates: Rack, qs
	PHP    []byte // a[b] is b inside of a; dots, spaces and lone brackets in a become underscores

	folded, lower []byte // room

	cut int // the length of Nested without the text right after a closing bracket, which qs leaves out; 0 for all of it
}

// Set makes it the name that a form, query or cookie has.
func (n *Name) Set(name []byte) {
	if i := bytes.IndexByte(name, 0); i >= 0 { // programs in C stop here
		name = name[:i]
	}
	for _, c := range name {
		if c >= utf8.RuneSelf {
			name = n.fold(name)
			break
		}
	}
	n.readNested(name)
	n.readPHP(name)
}

// fold returns a name with ordinary letters in lower case. It uses the same memory for all names, which may become 11 times as
// long.
func (n *Name) fold(name []byte) []byte {
	n.folded, n.lower = norm.NFKC.Append(n.folded[:0], name...), n.lower[:0]
	for _, r := range string(n.folded) { // this makes no copy
		n.lower = utf8.AppendRune(n.lower, unicode.ToLower(r))
	}
	return n.lower
}

func (n *Name) readNested(name []byte) {
	n.Nested, n.cut = n.Nested[:0], 0
	for i, c := range name {
		switch {
		case c == '[' || c == ']' || c == '.':
			n.Nested = separate(n.Nested)
			if n.cut == 0 && c == ']' && i+1 < len(name) && strings.IndexByte("[].", name[i+1]) < 0 {
				n.cut = max(0, len(n.Nested)-1)
			}
		case c > ' ' || c == ' ' && len(n.Nested) > 0 && n.Nested[len(n.Nested)-1] != '.':
			n.Nested = append(n.Nested, fold.Lower(c))
		}
	}
	n.Nested = bytes.TrimRight(n.Nested, ". ")
}

func (n *Name) readPHP(name []byte) {
	n.PHP = n.PHP[:0]
	name = bytes.TrimLeft(name, " []")
	end := bytes.IndexByte(name, '[')
	if end < 0 || bytes.IndexByte(name[end:], ']') < 0 {
		end = len(name)
	}
	for _, c := range bytes.TrimRight(name[:end], "]") {
		if c == '.' || c == ' ' || c == '[' {
			c = '_'
		}
		n.PHP = append(n.PHP, fold.Lower(c))
	}
	for rest := name[end:]; len(rest) > 0 && rest[0] == '['; {
		part, after, closed := bytes.Cut(rest[1:], []byte("]"))
		if !closed {
			break
		}
		if part = bytes.TrimLeft(part, " \t\r\n"); len(part) > 0 {
			n.PHP = append(n.PHP, '.')
			for _, c := range part {
				n.PHP = append(n.PHP, fold.Lower(c))
			}
		}
		rest = after
	}
}

func separate(path []byte) []byte {
	path = bytes.TrimRight(path, " ")
	if len(path) > 0 && path[len(path)-1] != '.' {
		path = append(path, '.')
	}
	return path
}

// is reports whether some reader takes the name for that of the field, or for something inside of it.
func (n *Name) is(f *Field) (same, inside bool) {
	for _, path := range f.names {
		for _, name := range [][]byte{n.Nested, n.Nested[:n.cut]} {
			switch rest, ok := follow(path, name); {
			case ok && len(rest) == 0:
				return true, false
			case ok && fold.IsDigit(rest[0]): // an element of a list, as id.0 and .id[0] are to qs
				inside = true
			}
		}
		switch rest, ok := follow(path, n.PHP); {
		case ok && len(rest) == 0:
			return true, false
		case ok:
			inside = true
		}
	}
	return false, inside
}

// follow takes the steps of a path off the front of a name, and reports whether the name has them all.
func follow(path []nameStep, name []byte) (rest []byte, ok bool) {
	if len(path) == 0 {
		return name, true
	}
	if path[0].optional {
		if rest, ok := follow(path[1:], name); ok && len(rest) == 0 {
			return nil, true
		}
	}
	if len(name) == 0 {
		return nil, false
	}
	first, rest, _ := bytes.Cut(name, []byte("."))
	if !path[0].any && string(first) != path[0].text {
		return nil, false
	}
	return follow(path[1:], rest)
}
