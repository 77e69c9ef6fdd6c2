package middleware

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxDepth is how deep a JSON body may be nested.
const maxDepth = 100

var (
	errBadJSON   = errors.New("body is not valid JSON")
	errTooDeep   = fmt.Errorf("body is nested deeper than %d", maxDepth)
	errNotScalar = errors.New("an object or an array, not a value")
	errBadNumber = errors.New("a number that can be written in another way; a whole number such as 42 can't")
)

// jsonReader finds fields in JSON in one pass, and holds no more of it than their values. It
// refuses what another reader may take otherwise: names on a path that are given twice, also if
// they differ in case (encoding/json takes the last one), text behind the value, invalid UTF-8.
type jsonReader struct {
	*jsontext.Decoder
	found []found
}

// cursor is a field that may be in the value which comes next.
type cursor struct {
	field int
	rest  []step // of its path
	or    [][]step
}

func (c cursor) next() cursor {
	c.rest = c.rest[1:]
	return c
}

func findJSON(raw []byte, fields []field) ([]found, error) {
	j := jsonReader{
		// names are compared here, where it matters; the decoder would have to remember all of them
		Decoder: jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true)),
		found:   make([]found, len(fields)),
	}
	at := make([]cursor, len(fields))
	for i, f := range fields {
		at[i] = cursor{field: i, rest: f.path, or: f.or}
	}
	err := j.value(at)
	if err == nil {
		if _, err = j.ReadToken(); err == nil {
			err = errBadJSON // a second value
		}
	}
	switch {
	case err == io.EOF:
		return j.found, nil
	case err == errTooDeep:
		return nil, err
	}
	return nil, errBadJSON // the decoder's own error quotes the body
}

// value reads a value, in which these fields may be.
func (j *jsonReader) value(at []cursor) error {
	if len(at) == 0 {
		return j.skip()
	}
	switch j.PeekKind() {
	case '{':
		return j.object(at)
	case '[':
		return j.array(at)
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

// object reads an object.
func (j *jsonReader) object(at []cursor) error {
	if err := j.open(); err != nil {
		return err
	}
	seen := make([]bool, len(at))
	for j.PeekKind() != '}' {
		token, err := j.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		var inside []cursor
		for i, c := range at {
			if len(c.rest) == 0 || c.rest[0].each || !strings.EqualFold(name, c.rest[0].name) {
				continue
			}
			if seen[i] || name != c.rest[0].name {
				j.found[c.field].err = ErrAmbiguousKey
			}
			seen[i] = true
			inside = append(inside, c.next())
		}
		if err := j.value(inside); err != nil {
			return err
		}
	}
	return j.close(at, seen)
}

// array reads an array.
func (j *jsonReader) array(at []cursor) error {
	if err := j.open(); err != nil {
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
	return j.close(at, seen)
}

// element reads an element of an array. Where a field has alternatives in it, they are found beside the others,
// and one of them is the field's.
func (j *jsonReader) element(at []cursor) error {
	first := len(j.found)
	var inside []cursor
	for _, c := range at {
		if c.or == nil || len(c.rest) > 0 {
			inside = append(inside, c)
			continue
		}
		for _, path := range c.or {
			inside = append(inside, cursor{field: len(j.found), rest: path})
			j.found = append(j.found, found{})
		}
	}
	err := j.value(inside)
	all := j.found[first:]
	j.found = j.found[:first]
	for _, c := range at {
		if c.or != nil && len(c.rest) == 0 {
			j.found[c.field].addFirst(all[:len(c.or)])
			all = all[len(c.or):]
		}
	}
	return err
}

// close reads the end of an object or an array, in which these fields were seen.
func (j *jsonReader) close(at []cursor, seen []bool) error {
	for i, c := range at {
		if len(c.rest) == 0 {
			j.found[c.field].err = errNotScalar
		} else if !seen[i] {
			j.found[c.field].missing = true
		}
	}
	_, err := j.ReadToken()
	return err
}

// open reads the beginning of an object or an array.
func (j *jsonReader) open() error {
	_, err := j.ReadToken()
	if err == nil && j.StackDepth() > maxDepth {
		err = errTooDeep
	}
	return err
}

// skip reads a value in which no field is.
func (j *jsonReader) skip() error {
	for depth := j.StackDepth(); ; {
		if err := j.open(); err != nil {
			return err
		}
		if j.StackDepth() <= depth {
			return nil
		}
	}
}

func (f *found) addToken(token jsontext.Token) {
	switch token.Kind() {
	case 'n':
		f.missing = true
	case '0':
		if !canonical(token.String()) {
			f.err = errBadNumber
			return
		}
		f.add(token.String())
	default:
		f.add(token.String())
	}
}

// canonical says whether a JSON number has no other spelling: 42, 42.0 and 4.2e1 are one number,
// and must not be three keys.
func canonical(number string) bool {
	if strings.ContainsAny(number, "eE") || number == "-0" {
		return false
	}
	return !strings.Contains(number, ".") || !strings.HasSuffix(number, "0")
}
