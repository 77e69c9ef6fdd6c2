package middleware

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const (
	maxKeys  = 16      // of a request
	maxSteps = 16      // of the path of a field
	maxValue = 4 << 10 // bytes of a field's value
)

// field is where a value stands in a body: {body.data.object.id}.
type field struct {
	path []step   // in JSON
	or   [][]step // behind path, which is a list then: of each element the first that is there
	name string   // in a form
	each bool     // whether it may have several values
}

// step is one of a path: to a member of an object or an element of an array, or to each
// element of it.
type step struct {
	name  string
	index int // in an array; -1 for none
	each  bool
}

// parseField reads what stands behind "body." in a placeholder: names and numbers with dots
// between, where name[] means each element. A dot in a name is written \.
func parseField(text string) (field, error) {
	const dot = "\x00"
	var f field
	f.name = strings.ReplaceAll(strings.TrimSuffix(text, "[]"), `\.`, ".")
	for part := range strings.SplitSeq(strings.ReplaceAll(text, `\.`, dot), ".") {
		name, each := strings.CutSuffix(strings.ReplaceAll(part, dot, "."), "[]")
		if name != "" {
			f.path = append(f.path, step{name: name, index: arrayIndex(name)})
		}
		if each {
			f.path = append(f.path, step{each: true})
		}
		if name == "" && !each {
			return f, fmt.Errorf("{body.%s}: want the name of a field, such as {body.order.id} or {body.items[].id}", text)
		}
		f.each = f.each || each
	}
	if len(f.path) > maxSteps {
		return f, fmt.Errorf("{body.%s}: more than %d names", text, maxSteps)
	}
	return f, nil
}

// join makes one field of two in the same list, and says whether they are: of {body.items[].a|body.items[].b}
// each element has the one or the other.
func (f *field) join(next field) bool {
	if !f.each || !next.each {
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
	f.path, f.or = list, append(f.or, otherRest)
	return true
}

// split splits the path behind its last list.
func (f *field) split() (list, rest []step) {
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

// found are the values of a field in a body.
type found struct {
	values  []string
	missing bool // it isn't there, or empty, or so in one of the elements
	err     error
}

func (f *found) add(value string) {
	switch {
	case value == "":
		f.missing = true
	case len(value) > maxValue:
		f.err = fmt.Errorf("longer than %d bytes", maxValue)
	case slices.Contains(f.values, value): // the same key
	case len(f.values) == maxKeys:
		f.err = errTooManyKeys
	default:
		f.values = append(f.values, value)
	}
}

// addFirst adds the first of several values that is there, of an element of a list.
func (f *found) addFirst(alternatives []found) {
	for _, a := range alternatives {
		values, err := a.result()
		if errors.Is(err, ErrMissingKey) {
			continue
		}
		if err != nil {
			f.err = err
		} else {
			f.add(values[0])
		}
		return
	}
	f.missing = true
}

// errPartly is not ErrMissingKey: a fallback, or on_missing_key pass, would leave out the keys that are there.
var errPartly = errors.New("missing or empty in some of the elements only")

func (f *found) result() ([]string, error) {
	switch {
	case f.err != nil:
		return nil, f.err
	case len(f.values) == 0:
		return nil, ErrMissingKey
	case f.missing:
		return nil, errPartly
	}
	return f.values, nil
}

// fields are those of one template in the body of one request, which is read when the first is asked for.
type fields struct {
	request *http.Request
	fields  []field
	read    bool
	found   []found
	err     error
}

func (f *fields) values(i int) ([]string, error) {
	if !f.read {
		f.read = true
		f.found, f.err = findFields(f.request, f.fields)
	}
	if f.err != nil {
		return nil, f.err
	}
	return f.found[i].result()
}

func findFields(r *http.Request, fields []field) ([]found, error) {
	if r.Body == nil || r.ContentLength == 0 { // another handler may have put something around no body, or another body there
		if raw, err := bodyBytes(r); err != nil || len(raw) == 0 {
			return make([]found, len(fields)), err
		}
	}
	find, err := bodyFormat(r.Header)
	if err != nil {
		return nil, err
	}
	raw, err := bodyBytes(r)
	if err != nil {
		return nil, err
	}
	if len(raw) == 0 {
		return make([]found, len(fields)), nil
	}
	return find(raw, fields)
}

var errContentType = errors.New("Content-Type is given more than once")

// bodyFormat chooses how a body is read. Where that isn't certain it is refused, lest the handler
// read it in another way.
func bodyFormat(h http.Header) (func([]byte, []field) ([]found, error), error) {
	for _, encoding := range h["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return nil, errBodyEncoded
		}
	}
	types := h["Content-Type"]
	if len(types) > 1 {
		return nil, errContentType
	}
	media, parameters, err := mime.ParseMediaType(strings.Join(types, ""))
	if charset := parameters["charset"]; err != nil || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return nil, errBodyFormat
	}
	switch {
	case media == "application/json", strings.HasSuffix(media, "+json"):
		return findJSON, nil
	case media == "application/x-www-form-urlencoded":
		return findForm, nil
	}
	return nil, errBodyFormat
}
