package fields

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// nameStep is one step in a field's name in a form or query: order[items][0] has three.
type nameStep struct {
	text     string
	any      bool // this step is any index of a list
	optional bool // the step is the index of a list, which a form may leave out, as in items[]
}

// steps returns the steps of the field's name, spelled as in a Name.
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

// Name is a name in a form, query or cookie without anything that some reader drops, ignores or writes differently. It keeps the ASCII
// letters, in lower case, and the digits, with one "[" for brackets between them and one "." for dots. Names that have the same letters
// and digits are one name to some reader.
type Name []byte

func isSeparator(r rune) bool { return r == '[' || r == '.' }

// NameOf returns the Name of a text that has no escapes.
func NameOf(text string) (n Name) {
	n.Set([]byte(text))
	return n
}

// CheckName returns an error if no form, query or cookie can have the name.
func CheckName(name string) error {
	if len(NameOf(name)) == 0 || strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return fmt.Errorf("%q is not the name of a field, parameter or cookie; want ASCII, with a letter or digit", name)
	}
	return nil
}

// inName maps each byte to its byte in a Name; 0 means that the byte is dropped.
var inName = func() (all [256]byte) {
	for c := range all {
		if fold.IsAlphanumeric(byte(c)) {
			all[c] = fold.Lower(byte(c))
		}
	}
	all['['], all[']'], all['.'] = '[', '[', '.'
	return all
}()

func (n *Name) Set(text []byte) {
	name, separator := slices.Grow((*n)[:0], len(text)), byte(0)
	for _, c := range text {
		if c == 0 { // programs in C end the name at a zero byte
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

// Alike reports whether some reader takes both names for one, or takes n for a name inside of other.
func (n Name) Alike(other Name) bool {
	rest, ok := n.after(other)
	return ok && (len(rest) == 0 || isInside(rest))
}

// after returns the part of n behind other, if n begins with the letters and digits of other. Separators between these don't matter.
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

// initials are the bytes with which a field's name may begin. A name that begins with none of them is skipped at nearly no cost.
type initials [256]bool

func initialsOf(fields []Field) (may initials) {
	for i := range fields {
		for _, own := range fields[i].names {
			switch {
			case len(own.steps) == 0:
			case own.steps[0].any || own.steps[0].optional || len(own.name) == 0:
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

// begin reports whether the name begins with one of the initials.
func (may *initials) begin(name []byte) bool {
	for _, c := range name {
		if c = inName[c]; c != 0 && c != '[' && c != '.' {
			return may[c]
		}
	}
	return may[0]
}

// is reports whether some reader takes the name for the field's name, or for a name inside of the field.
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

// isInside reports whether a name with this rest belongs to a field inside the field named before it. That is so if the rest begins with a bracket
// or, for the library qs, with a dot and a digit.
func isInside(rest []byte) bool {
	return len(rest) > 1 && (rest[0] == '[' || rest[0] == '.' && fold.IsDigit(rest[1]))
}

// follow takes the steps off the front of a name, and reports whether the name begins with all of them.
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
