package fields

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// nameStep is one step in the name of a field of a form or query: order[items][0] has three.
type nameStep struct {
	text     string
	any      bool // an element of a list, whatever its index
	optional bool // the index of a list, which items[] leaves out
}

// steps returns the steps of the field's name, as a Name has them.
func (f *Field) steps() (steps []nameStep) {
	for _, s := range f.path {
		if s.each {
			steps = append(steps, nameStep{any: true, optional: true})
			continue
		}
		for part := range strings.FieldsFuncSeq(string(NameOf(s.name).steps), isSeparator) {
			steps = append(steps, nameStep{text: part, optional: s.index >= 0})
		}
	}
	return steps
}

// nested returns the name of a field as Rails, PHP and Express write it: order[id].
func (f *Field) nested() string {
	name := f.path[0].name
	for _, s := range f.path[1:] {
		name += "[" + s.name + "]"
	}
	return name
}

// Name is a name of a form, query or cookie with all that some reader leaves out, ignores or writes in another way: what remains is its
// ASCII letters, in lower case, and digits. Names that are alike in this are one name to some reader.
type Name struct {
	steps []byte // with separators: one "[" for brackets, one "." for dots
	flat  []byte // without them
}

func isSeparator(r rune) bool { return r == '[' || r == '.' }

// NameOf returns the Name of a text without escapes.
func NameOf(text string) *Name {
	n := new(Name)
	n.Set([]byte(text))
	return n
}

// CheckName returns an error if no form, query or cookie has the name.
func CheckName(name string) error {
	if len(NameOf(name).flat) == 0 || strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return fmt.Errorf("%q is not the name of a field, parameter or cookie; want ASCII, with a letter or digit", name)
	}
	return nil
}

// Set makes it that of a text without escapes.
func (n *Name) Set(text []byte) {
	n.steps, n.flat = n.steps[:0], n.flat[:0]
	var separator byte
	for _, c := range text {
		switch {
		case c == 0: // programs in C stop here
			return
		case c == '[' || c == ']':
			separator = '['
		case c == '.' && separator == 0:
			separator = '.'
		case fold.IsAlphanumeric(c):
			if separator != 0 && len(n.steps) > 0 {
				n.steps = append(n.steps, separator)
			}
			separator = 0
			n.steps, n.flat = append(n.steps, fold.Lower(c)), append(n.flat, fold.Lower(c))
		}
	}
}

// Alike reports whether some reader takes two names for one, or n for that of something inside of the other.
func (n *Name) Alike(other *Name) bool {
	return string(n.flat) == string(other.flat) || n.isIn(other.flat)
}

// isIn reports whether the name begins with another one, and leads into that: order[id][0] is inside of order.id.
func (n *Name) isIn(flat []byte) bool {
	if len(flat) == 0 || !bytes.HasPrefix(n.flat, flat) {
		return false
	}
	left := len(flat)
	for i, c := range n.steps {
		switch {
		case isSeparator(rune(c)):
		case left == 0:
			return isInside(n.steps[i-1:])
		default:
			left--
		}
	}
	return false
}

// is reports whether some reader takes the name for that of the field, or for something inside of it.
func (n *Name) is(f *Field) (same, inside bool) {
	for i := range f.names {
		name := &f.names[i]
		if !f.each && len(n.flat) > 0 {
			if bytes.Equal(n.flat, name.flat) {
				return true, false
			}
			inside = inside || n.isIn(name.flat)
		}
		if name.listed {
			rest, ok := follow(name.steps, n.steps)
			if ok && len(rest) == 0 {
				return true, false
			}
			inside = inside || ok && isInside(rest)
		}
	}
	return false, inside
}

// isInside reports whether what follows a name leads into it: brackets do, and to qs so does the index of a list behind a dot.
func isInside(rest []byte) bool {
	return len(rest) > 1 && (rest[0] == '[' || rest[0] == '.' && fold.IsDigit(rest[1]))
}

// follow takes steps off the front of a name, and reports whether the name has them all.
func follow(steps []nameStep, name []byte) (rest []byte, ok bool) {
	if len(steps) == 0 {
		return name, true
	}
	if steps[0].optional {
		if rest, ok := follow(steps[1:], name); ok && len(rest) == 0 {
			return nil, true
		}
	}
	if len(name) > 0 && isSeparator(rune(name[0])) {
		name = name[1:]
	}
	if len(name) == 0 {
		return nil, false
	}
	end := bytes.IndexAny(name, "[.")
	if end < 0 {
		end = len(name)
	}
	if !steps[0].any && string(name[:end]) != steps[0].text {
		return nil, false
	}
	return follow(steps[1:], name[end:])
}
