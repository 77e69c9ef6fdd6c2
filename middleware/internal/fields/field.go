// Package fields finds the values of named fields in JSON, in forms and in queries. It looks at all spellings of a name that
// some reader takes for the field, and refuses what two readers could read differently: docs/keys.md has the table.
package fields

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

const (
	// MaxValues is how many different values a field, and how many keys a request, may have.
	MaxValues = 16

	maxSteps = 16      // of the path of a field
	maxValue = 4 << 10 // bytes of one value

	minNumber = 1e-30 // besides 0: six bytes such as 1e-308 become 310 in a key
)

// The errors of values.
var (
	ErrMissing   error = fold.Error("missing or empty")
	ErrAmbiguous error = fold.Error("given more than once, or under a name or in a place that some upstreams take for this one")
	ErrTooMany   error = fold.Error(fmt.Sprintf("more than %d different values", MaxValues))
	ErrNotScalar error = fold.Error("is an object or array; want a string, number or boolean")
	// ErrPartly does not match ErrMissing: the next alternative, or a request without a lock, would leave out the keys of the
	// elements that have the field.
	ErrPartly error = fold.Error("missing or empty in some of the elements only")
)

var errBadNumber error = fold.Error("number is too large, or too close to 0")

// Field is the place of a value in a body or query, such as data.object.id.
type Field struct {
	Format string // json, form or payload (JSON in a field of a form) if only that is read; empty for all

	path []step   // in JSON
	or   [][]step // if set, path leads to a list, and each of its elements has the first of these that is present
	each bool     // whether the field may have several values

	name, bracketed string     // in a form: order.id, order[id]
	names           []ownNames // several for alternatives in one list
}

// ownNames are all names that some reader takes for that of a field.
type ownNames struct {
	steps  []nameStep
	name   Name
	listed bool // a step leads into a list, whose index may be left out
}

// step is one step of a path: to a member of an object, to an element of an array, or to each element of it.
type step struct {
	name   string
	joined string
	index  int // in an array; -1 for none
	each   bool
}

// Parse reads the path of a field: names and numbers separated by dots, where name[] means each element of a list. A dot in a
// name is written \.
func Parse(text string) (Field, error) {
	const dot = "\x00"
	var f Field
	f.name = strings.ReplaceAll(strings.TrimSuffix(text, "[]"), `\.`, ".")
	for part := range strings.SplitSeq(strings.ReplaceAll(text, `\.`, dot), ".") {
		name, each := strings.CutSuffix(strings.ReplaceAll(part, dot, "."), "[]")
		if name != "" {
			f.path = append(f.path, step{name: name, joined: joined(name), index: arrayIndex(name)})
		}
		if each {
			f.path = append(f.path, step{each: true})
		}
		if name == "" && !each {
			return f, fmt.Errorf("%q: want the name of a field, such as order.id or items[].id", text)
		}
		f.each = f.each || each
	}
	if len(f.path) > maxSteps {
		return f, fmt.Errorf("%q: more than %d names", text, maxSteps)
	}
	steps := f.steps()
	listed := slices.ContainsFunc(steps, func(s nameStep) bool { return s.any || s.optional })
	f.bracketed, f.names = f.nested(), []ownNames{{steps, NameOf(f.name), listed}}
	return f, nil
}

// Several reports whether the field may have several values.
func (f *Field) Several() bool { return f.each }

// Join makes one field of two in the same list, and reports whether they are: with {body.items[].a|body.items[].b} each
// element has the one or the other.
func (f *Field) Join(next Field) bool {
	if !f.each || !next.each || f.Format != next.Format {
		return false
	}
	list, rest := f.split()
	otherList, otherRest := next.split()
	if !slices.Equal(list, otherList) {
		return false
	}
	if f.or == nil {
		f.or = [][]step{rest}
	}
	f.path, f.or, f.names = list, append(f.or, otherRest), append(f.names, next.names...)
	return true
}

// split splits the path after its last list.
func (f *Field) split() (list, rest []step) {
	n := len(f.path)
	for !f.path[n-1].each {
		n--
	}
	return f.path[:n], f.path[n:]
}

func arrayIndex(name string) int {
	if n, err := strconv.Atoi(name); err == nil && strconv.Itoa(n) == name {
		return n
	}
	return -1
}

// Found is what was found of a field.
type Found struct {
	Values []string
	Err    error

	large   []string // numbers in Values that many readers round
	missing bool     // the field, or that of one element, is missing or empty

	absent    bool   // JSON has nothing of the path
	unwrapped *Found // what the rest of its path leads to, in JSON
}

// Unwrapped returns what a reader that wraps JSON in the name of its resource finds where the field is missing, or nil.
func (f *Found) Unwrapped() *Found {
	if !f.absent || f.unwrapped == nil || len(f.unwrapped.Values) == 0 && !f.unwrapped.failed() {
		return nil
	}
	return f.unwrapped
}

// Result returns the values, or the error that matters most. If Some of the values are of use, it returns them as well.
func (f *Found) Result() ([]string, error) {
	switch {
	case f.failed():
		return nil, f.Err
	case f.Err != nil:
		return f.Values, f.Err
	case len(f.Values) == 0:
		return nil, ErrMissing
	case f.missing:
		return f.Values, ErrPartly
	}
	return f.Values, nil
}

// Some reports whether an error leaves some values, which may be locked together with those of other fields.
func Some(err error) bool { return err == nil || err == ErrPartly || err == ErrNotScalar }

// Rounded returns the numbers to which many readers round those in Values.
func (f *Found) Rounded() []string {
	var rounded []string
	for _, text := range f.large {
		if float, err := strconv.ParseFloat(text, 64); err == nil {
			rounded = append(rounded, strconv.FormatFloat(float, 'f', -1, 64))
		}
	}
	return rounded
}

// fail notes why the values are of no use. The first reason stays, unless it is ErrNotScalar, which some placeholders ignore.
func (f *Found) fail(err error) {
	if !f.failed() {
		f.Err = err
	}
}

// failed reports whether no further value matters.
func (f *Found) failed() bool { return f.Err != nil && f.Err != ErrNotScalar }

func (f *Found) add(value string) {
	switch {
	case value == "":
		f.missing = true
	case len(value) > maxValue:
		f.fail(fold.Error(fmt.Sprintf("longer than %d bytes", maxValue)))
	case slices.Contains(f.Values, value): // it makes the same key
	case len(f.Values) == MaxValues:
		f.Err = ErrTooMany // whatever else is wrong: Values lacks some
	default:
		f.Values = append(f.Values, value)
	}
}

func (f *Found) addText(value []byte) {
	text := string(AppendUnescaped(nil, value))
	if !utf8.ValidString(text) {
		f.fail(fold.ErrBadText)
		return
	}
	f.add(text)
}

// addNumber adds a number in its one spelling: 42, 42.0 and 4.2e1 are the same, and so is every number that readers round to
// it. A large number has two values, because some readers keep it exact, and so has a fraction, because some want a whole number.
func (f *Found) addNumber(text string) {
	if f.failed() || slices.Contains(f.large, text) { // some numbers take long to parse
		return
	}
	float, err := strconv.ParseFloat(text, 64)
	if err != nil || float != 0 && math.Abs(float) < minNumber {
		f.fail(errBadNumber)
		return
	}
	if short, ok := fold.ShortNumber(text); ok {
		f.add(short)
	} else {
		f.addLarge(text)
	}
	for _, whole := range fold.Wholes(text) {
		f.add(whole)
	}
}

// addLarge adds numbers that many readers round. They are rounded later: six bytes such as 1e308 become 309, as often as the
// body has them.
func (f *Found) addLarge(texts ...string) {
	for _, text := range texts {
		if f.add(text); !f.failed() && !slices.Contains(f.large, text) {
			f.large = append(f.large, text)
		}
	}
}

// addFirst adds the first of several alternatives that an element of a list has.
func (f *Found) addFirst(alternatives []Found) {
	for _, a := range alternatives {
		values, err := a.Result()
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			f.fail(err)
		} else {
			for _, value := range values { // several of one number
				f.add(value)
			}
			f.addLarge(a.large...)
		}
		return
	}
	f.missing = true
}
