// Package fields finds the values of named fields in JSON, forms and queries. It looks at every spelling of a name that some
// upstream takes for the field, and refuses a body that two upstreams could read differently. docs/keys.md has the table.
package fields

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

const (
	// MaxValues is how many different values a field, and how many keys a request, may have.
	MaxValues = 16

	maxSteps = 16      // the most names in the path of a field
	maxValue = 4 << 10 // the most bytes of one value

	minNumber = 1e-30 // the smallest absolute value allowed, except 0: the six bytes of 1e-308 would become 310 bytes in a key
)

// The errors for values from which no key is made.
var (
	ErrMissing   error = fold.Error("missing or empty")
	ErrAmbiguous error = fold.Error("given more than once, or under a name or in a place that some upstreams take for this one")
	ErrTooMany   error = fold.Error(fmt.Sprintf("more than %d different values", MaxValues))
	ErrNotScalar error = fold.Error("is an object or array; want a string, number or boolean")
	// ErrPartly doesn't match ErrMissing. If it did, the rule would use the next alternative, or serve the request without a lock, and so
	// not lock the keys of the elements that have the field.
	ErrPartly error = fold.Error("missing or empty in some of the elements only")
)

var errBadNumber error = fold.Error("number is too large, or too close to 0")

// Field is a field of a body or query, given by its path, such as data.object.id.
type Field struct {
	Format string // json, form, or payload (JSON in a field of a form) if the body must be of this format; empty if any format will do

	path []step   // in JSON
	or   [][]step // the alternatives for an element, if path leads to a list: the first one that the element has counts
	each bool     // the field may have several values

	name, bracketed string     // the name in a form, as order.id and as order[id]
	names           []ownNames // the spellings of the name; one element for this field, and one for each field that Join has merged
}

// ownNames are all names that some reader of a form takes for the name of a field.
type ownNames struct {
	steps  []nameStep
	name   Name
	listed bool // the path leads into a list, whose index some forms leave out
}

// step is one step of a path: to a member of an object, to an element of an array, or to each element of it.
type step struct {
	name   string
	joined string
	index  int // of the array element; -1 for none
	each   bool
}

// Parse reads the path of a field: names and numbers with dots between them. name[] means every element of a list. A dot inside a
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

func (f *Field) Several() bool { return f.each }

// Join merges the field next into this one if both are in the same list, and reports whether it did. With {body.items[].a|body.items[].b}, each
// element of the list may have a value for a or for b.
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

// split splits the path after the last step that leads to every element of a list.
func (f *Field) split() (list, rest []step) {
	n := len(f.path)
	for !f.path[n-1].each {
		n--
	}
	return f.path[:n], f.path[n:]
}

// Text returns the value that the field has in a body with this text in its place, or why it has none.
func (f *Field) Text(text string) (string, error) {
	var found []Found
	var err error
	if f.Format == grammar.Urlencoded {
		found, err = InForm([]byte(url.QueryEscape(f.name)+"="+url.QueryEscape(text)), []Field{*f})
	} else {
		var document any = text
		for _, s := range slices.Backward(f.path) {
			if s.each {
				document = []any{document}
			} else {
				document = map[string]any{s.name: document}
			}
		}
		raw, _ := json.Marshal(document) // never an error for texts
		found, err = InJSON(raw, []Field{*f})
	}
	if err != nil {
		return "", err
	}
	values, err := found[0].Result()
	if err != nil {
		return "", err
	}
	return values[0], nil
}

func arrayIndex(name string) int {
	if n, err := strconv.Atoi(name); err == nil && strconv.Itoa(n) == name {
		return n
	}
	return -1
}

// Found has the values of one field in one body or query.
type Found struct {
	Values []string
	Err    error

	large   []string // numbers in Values that many readers round
	missing bool     // the field is missing or empty, in the body or in one element of a list

	absent    bool   // the JSON lacks the first name of the path
	unwrapped *Found // the values in JSON at the path without its first name
}

// Unwrapped returns the values that Rails finds if the field is missing, or nil. Rails wraps JSON in the name of the resource, so it finds order.id
// in {"id":42}.
func (f *Found) Unwrapped() *Found {
	if !f.absent || f.unwrapped == nil || len(f.unwrapped.Values) == 0 && !f.unwrapped.failed() {
		return nil
	}
	return f.unwrapped
}

// Result returns the values, or the error that matters most. If Some accepts the error, it returns the values that were found as well.
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

// Some reports whether Result returns the values that were found together with this error. Placeholders that lock the values of several fields
// together can use these values.
func Some(err error) bool { return err == nil || err == ErrPartly || err == ErrNotScalar }

// Rounded returns the large numbers of Values as many readers round them.
func (f *Found) Rounded() []string {
	var rounded []string
	for _, text := range f.large {
		if float, err := strconv.ParseFloat(text, 64); err == nil {
			rounded = append(rounded, strconv.FormatFloat(float, 'f', -1, 64))
		}
	}
	return rounded
}

// fail notes an error for the field. The first error stays, except that any other error replaces ErrNotScalar, which some placeholders ignore.
func (f *Found) fail(err error) {
	if !f.failed() {
		f.Err = err
	}
}

// failed reports whether an error has made all further values useless.
func (f *Found) failed() bool { return f.Err != nil && f.Err != ErrNotScalar }

func (f *Found) add(value string) {
	switch {
	case value == "":
		f.missing = true
	case len(value) > maxValue:
		f.fail(fold.Error(fmt.Sprintf("longer than %d bytes", maxValue)))
	case slices.Contains(f.Values, value): // the same value makes the same key
	case len(f.Values) == MaxValues:
		f.Err = ErrTooMany // replaces any other error, because Values is incomplete
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

// addNumber adds a number in one spelling, which is the same for 42, 42.0 and 4.2e1. For a fraction it also adds the whole numbers that some readers
// make of it. A large number stays exact. Rounded returns the value that other readers find for it.
func (f *Found) addNumber(text string) {
	if f.failed() || slices.Contains(f.large, text) { // parsing some numbers takes long
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

// addLarge adds numbers that many readers round. Rounded rounds them later, because a rounded number may take much memory: the six bytes of 1e308
// become 309.
func (f *Found) addLarge(texts ...string) {
	for _, text := range texts {
		if f.add(text); !f.failed() && !slices.Contains(f.large, text) {
			f.large = append(f.large, text)
		}
	}
}

// addFirst adds the first alternative that an element of a list has.
func (f *Found) addFirst(alternatives []Found) {
	for _, a := range alternatives {
		values, err := a.Result()
		if errors.Is(err, ErrMissing) {
			continue
		}
		if err != nil {
			f.fail(err)
		} else {
			for _, value := range values { // a number with a fraction has several values
				f.add(value)
			}
			f.addLarge(a.large...)
		}
		return
	}
	f.missing = true
}
