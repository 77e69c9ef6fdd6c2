package middleware

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// maxPairs is how many fields a form may have: each costs time for each field of the key.
const maxPairs = 10_000

var (
	errBadForm      = errors.New("body is not a valid form")
	errJSONForm     = errors.New("body is said to be a form, and begins like JSON")
	errTooManyPairs = fmt.Errorf("form has more than %d fields", maxPairs)
)

// findForm finds fields in a form in one pass, and holds no more of it than their values. Names
// that some reader takes for the same, such as id, ID and id[], are the same here.
func findForm(raw []byte, fields []field) ([]found, error) {
	switch {
	case likeJSON(raw):
		return nil, errJSONForm
	case bytes.IndexByte(raw, ';') >= 0, !validEscapes(raw): // some separate fields by ";"
		return nil, errBadForm
	}
	simple := make([]string, len(fields))
	for i, f := range fields {
		simple[i] = simpleName(f.name)
	}
	results := make([]found, len(fields))
	for pairs := 0; ; pairs++ {
		if raw = bytes.TrimLeft(raw, "&"); len(raw) == 0 {
			return results, nil
		}
		if pairs == maxPairs {
			return nil, errTooManyPairs
		}
		var pair []byte
		pair, raw, _ = bytes.Cut(raw, []byte("&"))
		escapedName, escapedValue, _ := bytes.Cut(pair, []byte("="))
		name := unescape(escapedName)
		simplified := simpleName(name)
		for i := range fields {
			if strings.EqualFold(simplified, simple[i]) {
				results[i].addPair(fields[i], name, unescape(escapedValue))
			}
		}
	}
}

// addPair adds the value of a pair whose name is that of the field, at least for some reader.
func (found *found) addPair(f field, name, value string) {
	several := f.each && (name == f.name || name == f.name+"[]")
	if !several && (name != f.name || found.values != nil || found.missing) || !utf8.ValidString(value) {
		found.err = ErrAmbiguousKey
		return
	}
	found.add(value)
}

// likeJSON says whether somebody who doesn't look at the Content-Type might read JSON, perhaps after
// undoing the escapes: it may have other values.
func likeJSON(raw []byte) bool {
	for len(raw) > 0 {
		c, size := raw[0], 1
		if escaped, ok := unhex(raw); ok {
			c, size = escaped, 3
		}
		if strings.IndexByte(`{["`, c) >= 0 {
			return true
		}
		if strings.IndexByte(" \t\r\n+\x00\ufeff", c) < 0 { // nothing that some reader skips
			return false
		}
		raw = raw[size:]
	}
	return false
}

func validEscapes(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '%')
		if i < 0 {
			return true
		}
		if _, ok := unhex(raw[i:]); !ok {
			return false
		}
		raw = raw[i+3:]
	}
}

// unhex gives the byte that an escape such as %41 stands for.
func unhex(escape []byte) (byte, bool) {
	if len(escape) < 3 || escape[0] != '%' {
		return 0, false
	}
	var c [1]byte
	_, err := hex.Decode(c[:], escape[1:3])
	return c[0], err == nil
}

// unescape needs valid escapes.
func unescape(text []byte) string {
	plain, _ := url.QueryUnescape(string(text))
	return plain
}

var underscores = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// simpleName is what others make of the name of a field: for PHP a[b] is a part of a, and a.b and a[b are
// a_b; for some [a] is a.
func simpleName(name string) string {
	name = strings.TrimLeft(name, " ")
	if i := strings.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	if inner := strings.TrimLeft(name, "["); inner != name {
		name, _, _ = strings.Cut(inner, "]")
	}
	if i := strings.IndexByte(name, '['); i >= 0 && strings.Contains(name[i:], "]") {
		name = name[:i]
	}
	return underscores.Replace(name)
}
