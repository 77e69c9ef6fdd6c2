package fields

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

const (
	maxMembers = 5_000 // the most members and elements on the way to the fields

	replaced = string(utf8.RuneError) // the decoder reads this in place of half a surrogate pair
)

var errTooManyMembers error = fold.Error(fmt.Sprintf("body has more than %d members or elements on the way to a field", maxMembers))

// jsonReader finds fields in JSON in one pass, and keeps only their values. It refuses JSON that another reader may read differently:
// duplicate names on the way to a field, even if they differ in case (encoding/json takes the last one), text after the value, and
// invalid UTF-8.
type jsonReader struct {
	*jsontext.Decoder
	found   []Found
	members int // how many members and elements were read
}

// cursor says that the next value may belong to a field.
type cursor struct {
	field int
	rest  []step   // the rest of the field's path, from the next value on
	or    [][]step // as in Field
	list  int      // in a cursor of asElements: the index of the field whose path has a list where the JSON has an object
}

func (c cursor) next() cursor {
	c.rest = c.rest[1:]
	return c
}

// InJSON finds fields in JSON. The decoder reads half of a surrogate pair, such as \ud83d, as U+FFFD. JavaScript and Python write such a half for a
// text that was cut inside an emoji. So InJSON refuses a half only in the value of a field.
func InJSON(raw []byte, fields []Field) ([]Found, error) {
	if !utf8.Valid(raw) {
		return nil, grammar.ErrJSON
	}
	j := jsonReader{
		// Names are compared below, and only on the way to fields. The decoder would have to remember all names to compare them.
		Decoder: jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)),
		found:   make([]Found, 2*len(fields)),
	}
	at := make([]cursor, 0, 2*len(fields))
	for i, f := range fields {
		at = append(at, cursor{field: i, rest: f.path, or: f.or})
		if len(f.path) > 1 && !f.path[0].each { // Rails finds order.id in {"id":42}
			at = append(at, cursor{field: len(fields) + i, rest: f.path[1:], or: f.or})
		}
	}
	err := j.value(at)
	if err == nil {
		if _, err = j.ReadToken(); err == nil {
			err = grammar.ErrJSON // there is a second value
		}
	}
	switch {
	case err == io.EOF:
		for i := range fields {
			j.found[i].unwrapped = &j.found[len(fields)+i]
		}
		return j.found[:len(fields)], nil
	case err == errTooManyMembers:
		return nil, err
	}
	return nil, grammar.ErrJSON // unlike the decoder's own error, this one doesn't quote the body
}

// value reads the next value, which may belong to the fields in at.
func (j *jsonReader) value(at []cursor) error {
	switch kind := j.PeekKind(); {
	case kind == '{' && slices.ContainsFunc(at, cursor.intoObject):
		return j.object(at)
	case kind == '[' && slices.ContainsFunc(at, cursor.intoArray):
		return j.array(at)
	case len(at) == 0, kind == '{', kind == '[':
		_, err := j.ReadValue()
		j.end(at, make([]bool, len(at)))
		return err
	}
	token, err := j.ReadToken()
	if err != nil {
		return err
	}
	for _, c := range at {
		if len(c.rest) > 0 {
			j.found[c.field].missing = true
		} else {
			j.found[c.field].addToken(token)
		}
	}
	return nil
}

func (c cursor) intoObject() bool { return len(c.rest) > 0 }
func (c cursor) intoArray() bool  { return len(c.rest) > 0 && (c.rest[0].each || c.rest[0].index >= 0) }

func (j *jsonReader) object(at []cursor) error {
	if _, err := j.ReadToken(); err != nil {
		return err
	}
	first := len(j.found)
	elements := j.asElements(at)
	seen := make([]bool, len(at))
	for j.PeekKind() != '}' {
		token, err := j.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		whole := joined(strings.ReplaceAll(name, replaced, "")) // some readers drop half of a surrogate pair
		cut := strings.IndexByte(name, 0) >= 0                  // json-c and json-glib end the name at a zero byte
		dotted := name
		if strings.IndexByte(name, '[') >= 0 {
			dotted = brackets.Replace(name)
		}
		inside := elements[:len(elements):len(elements)]
		for i, c := range at {
			// Object.assign of JavaScript takes the members of __proto__ for members of the object itself.
			if (name == "__proto__" || cut) && len(c.rest) > 0 || isShortcut(dotted, c.rest) {
				j.found[c.field].fail(ErrAmbiguous)
			}
			if len(c.rest) == 0 || c.rest[0].each || !strings.EqualFold(whole, c.rest[0].joined) {
				continue
			}
			if name != c.rest[0].name && slices.ContainsFunc(at, func(c cursor) bool { return len(c.rest) > 0 && c.rest[0].name == name }) {
				continue // another field of the rule has exactly this name
			}
			if seen[i] || name != c.rest[0].name {
				j.found[c.field].fail(ErrAmbiguous)
			}
			seen[i] = true
			inside = append(inside, c.next())
		}
		if err := j.element(inside); err != nil {
			return err
		}
	}
	for i, e := range elements {
		if found := &j.found[first+i]; len(found.Values) > 0 || found.failed() {
			j.found[e.list].fail(ErrAmbiguous)
		}
	}
	j.found = j.found[:first]
	_, err := j.ReadToken()
	j.end(at, seen)
	return err
}

var brackets = strings.NewReplacer("[", ".", "]", "")

// isShortcut reports whether some library takes the name of one member, written with dots, for a whole path. For example, Lodash's get looks for a
// member "order.id" before it looks for the member "id" of the object "order".
func isShortcut(name string, path []step) bool {
	if len(path) < 2 {
		return false
	}
	for i, s := range path {
		if i > 0 {
			if name == "" || name[0] != '.' {
				return false
			}
			name = name[1:]
		}
		var found bool
		if name, found = strings.CutPrefix(name, s.name); s.each || !found {
			return false
		}
	}
	return name == ""
}

var separators = strings.NewReplacer("_", "", "-", "")

// joined returns a name without the separators inside of it, because protojson takes order_id and orderId for one name, and Go's
// encoding/json/v2 order-id as well.
func joined(name string) string {
	first := strings.TrimLeft(name, "_")
	return name[:len(name)-len(first)] + separators.Replace(first)
}

// asElements returns cursors for the members of an object that stands where the path of a field has a list. PHP takes such an object for a list, and
// other readers find nothing in it. So the values in it are found separately, and the request is refused if there are any.
func (j *jsonReader) asElements(at []cursor) []cursor {
	var elements []cursor
	for _, c := range at {
		if len(c.rest) > 0 && c.rest[0].each {
			elements = append(elements, cursor{field: len(j.found), rest: c.rest[1:], or: c.or, list: c.field})
			j.found = append(j.found, Found{})
		}
	}
	return elements
}

func (j *jsonReader) array(at []cursor) error {
	if _, err := j.ReadToken(); err != nil {
		return err
	}
	seen := make([]bool, len(at))
	for index := 0; j.PeekKind() != ']'; index++ {
		var inside []cursor
		for i, c := range at {
			if len(c.rest) > 0 && (c.rest[0].each || c.rest[0].index == index) {
				seen[i] = true
				inside = append(inside, c.next())
			}
		}
		if err := j.element(inside); err != nil {
			return err
		}
	}
	_, err := j.ReadToken()
	j.end(at, seen)
	return err
}

// element reads an element of an array, or a member of an object. The alternatives of a field are found as separate fields, and
// the first alternative present becomes the field's value.
func (j *jsonReader) element(at []cursor) error {
	if j.members++; j.members > maxMembers {
		return errTooManyMembers
	}
	first := len(j.found)
	var inside, lists []cursor
	for _, c := range at {
		if c.or == nil || len(c.rest) > 0 {
			inside = append(inside, c)
			continue
		}
		if j.found[c.field].failed() {
			continue
		}
		lists = append(lists, c)
		for _, path := range c.or {
			inside = append(inside, cursor{field: len(j.found), rest: path})
			j.found = append(j.found, Found{})
		}
	}
	err := j.value(inside)
	all := j.found[first:]
	j.found = j.found[:first]
	for _, c := range lists {
		j.found[c.field].addFirst(all[:len(c.or)])
		all = all[len(c.or):]
	}
	return err
}

// end notes, at the end of an object or array, which fields were not in it.
func (j *jsonReader) end(at []cursor, seen []bool) {
	for i, c := range at {
		if len(c.rest) == 0 {
			j.found[c.field].fail(ErrNotScalar)
		} else if !seen[i] {
			j.found[c.field].missing = true
			j.found[c.field].absent = j.StackDepth() == 0
		}
	}
}

func (f *Found) addToken(token jsontext.Token) {
	switch token.Kind() {
	case 'n':
		f.missing = true
	case '0':
		f.addNumber(token.String())
	case 't', 'f': // some readers take true and false for numbers
		f.add(token.String())
		f.add(strconv.Itoa(strings.IndexByte("ft", byte(token.Kind()))))
	default:
		text := token.String()
		if strings.Contains(text, replaced) { // each reader replaces half of a surrogate pair by something else
			f.fail(fold.ErrBadText)
		} else {
			f.add(text)
		}
	}
}
