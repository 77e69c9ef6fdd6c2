package fields

import (
	"bytes"
	"fmt"
	"slices"
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
		for part := range strings.FieldsFuncSeq(string(NameOf(s.name)), isSeparator) {
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
// ASCII letters, in lower case, and digits, with one "[" for brackets between them, and one "." for dots. Names that are alike in their
// letters and digits are one name to some reader.
type Name []byte

func isSeparator(r rune) bool { return r == '[' || r == '.' }

// NameOf returns the Name of a text without escapes.
func NameOf(text string) (n Name) {
	n.Set([]byte(text))
	return n
}

// CheckName returns an error if no form, query or cookie has the name.
func CheckName(name string) error {
	if len(NameOf(name)) == 0 || strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return fmt.Errorf("%q is not the name of a field, parameter or cookie; want ASCII, with a letter or digit", name)
	}
	return nil
}

// inName has what a byte becomes in a Name, or 0 for nothing.
var inName = func() (all [256]byte) {
	for c := range all {
		if fold.IsAlphanumeric(byte(c)) {
			all[c] = fold.Lower(byte(c))
		}
	}
	all['['], all[']'], all['.'] = '[', '[', '.'
	return all
}()

// Set makes it that of a text without escapes.
func (n *Name) Set(text []byte) {
	name, separator := slices.Grow((*n)[:0], len(text)), byte(0)
	for _, c := range text {
		if c == 0 { // programs in C stop here
			break
		}
		switch c = inName[c]; {
		case c == '[', c == '.' && separator == 0:
			separator = c
		case c != 0 && c != '.':
			if separator != 0 && len(name) > 0 {
				name = append(name, separator)
			}
			name, separator = append(name, c), 0
		}
	}
	*n = name
}

// Alike reports whether some reader takes two names for one, or n for that of something inside of the other.
func (n Name) Alike(other Name) bool {
	rest, ok := n.after(other)
	return ok && (len(rest) == 0 || isInside(rest))
}

// after returns what follows the letters and digits of another name, whatever separates these.
func (n Name) after(other Name) (rest Name, ok bool) {
	for _, c := range other {
		if isSeparator(rune(c)) {
			continue
		}
		if len(n) > 0 && isSeparator(rune(n[0])) {
			n = n[1:]
		}
		if len(n) == 0 || n[0] != c {
			return nil, false
		}
		n = n[1:]
	}
	return n, len(other) > 0
}

// initials are the letters and digits with which a name may begin that is one of a field's. Others cost nearly nothing.
type initials [256]bool

func initialsOf(fields []Field) (may initials) {
	for i := range fields {
		for _, own := range fields[i].names {
			switch {
			case len(own.steps) == 0:
			case own.steps[0].any || own.steps[0].optional || len(own.name) == 0: // a space alone is no name
				for c := range may {
					may[c] = true
				}
			default:
				may[own.name[0]] = true
			}
		}
	}
	return may
}

// begin reports whether a name begins with one of them.
func (may *initials) begin(name []byte) bool {
	for _, c := range name {
		if c = inName[c]; c != 0 && c != '[' && c != '.' {
			return may[c]
		}
	}
	return may[0]
}

// is reports whether some reader takes the name for that of the field, or for something inside of it.
func (n Name) is(f *Field) (same, inside bool) {
	for i := range f.names {
		own := &f.names[i]
		if !f.each {
			rest, ok := n.after(own.name)
			if ok && len(rest) == 0 {
				return true, false
			}
			inside = inside || ok && isInside(rest)
		}
		if own.listed {
			rest, ok := follow(own.steps, n)
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
