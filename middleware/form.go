package middleware

import (
	"bytes"
	"errors"
	"net/url"
	"strings"
	"unicode/utf8"
)

var errBadForm = errors.New("body is not a valid form")

// findForm finds fields in a form in one pass, and holds no more of it than their values. Names
// that some reader takes for the same, such as id, ID and id[], are the same here.
func findForm(raw []byte, fields []field) ([]found, error) {
	results := make([]found, len(fields))
	for pair := range bytes.SplitSeq(raw, []byte("&")) {
		name, value, err := unescape(string(pair))
		if err != nil {
			return nil, errBadForm
		}
		simple := simpleName(name)
		for i, f := range fields {
			if !strings.EqualFold(simple, simpleName(f.name)) {
				continue
			}
			several := f.each && (name == f.name || name == f.name+"[]")
			if !several && (name != f.name || results[i].values != nil || results[i].missing) || !utf8.ValidString(value) {
				results[i].err = ErrAmbiguousKey
				continue
			}
			results[i].add(value)
		}
	}
	return results, nil
}

func unescape(pair string) (name, value string, err error) {
	if strings.Contains(pair, ";") { // it separates fields for some
		return "", "", errBadForm
	}
	name, value, _ = strings.Cut(pair, "=")
	if name, err = url.QueryUnescape(name); err != nil {
		return "", "", err
	}
	value, err = url.QueryUnescape(value)
	return name, value, err
}

var underscores = strings.NewReplacer(".", "_", " ", "_")

// simpleName is what PHP makes of the name of a field: a[b] is a part of a, and a.b is a_b.
func simpleName(name string) string {
	name = strings.TrimLeft(name, " ")
	if i := strings.IndexAny(name, "[\x00"); i >= 0 {
		name = name[:i]
	}
	return underscores.Replace(name)
}
