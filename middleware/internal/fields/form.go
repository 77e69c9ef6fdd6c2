package fields

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

// Each field of a form is compared with each field of the key.
const (
	maxPairs     = 1_000  // of a form or query; PHP, Express and node's querystring leave out the rest
	maxCollected = 10_000 // of bytes that some reader takes for one
)

var (
	// ErrTooManyPairs reports bytes that Collect has not read to their end.
	ErrTooManyPairs error = fold.Error(fmt.Sprintf("more than %d pairs such as a=b, which some reader takes for the fields of a form; send fewer, or read the field with {json.…}", maxCollected))

	errTooManyPairs error = fold.Error(fmt.Sprintf("form or query has more than %d fields", maxPairs))
	errLongName     error = fold.Error(fmt.Sprintf("form or query has a name longer than %d bytes", maxValue))
)

// InForm finds fields in a form or query in one pass, and keeps nothing but their values. Names that some reader takes for that of a
// field, such as ID, id[] and [id] for id, are refused even if the field has no other; a list has the values of all of them.
func InForm(raw []byte, fields []Field) ([]Found, error) {
	if err := grammar.Form(raw); err != nil {
		return nil, err
	}
	if bytes.Count(raw, []byte("&")) >= maxPairs { // Express counts empty ones, too
		return nil, errTooManyPairs
	}
	results := make([]Found, len(fields))
	var reader Name
	for name, value := range pairs(raw, "&") {
		if len(name) > maxValue {
			return nil, errLongName
		}
		if err := grammar.FormName(name); err != nil {
			return nil, err
		}
		reader.Set(name)
		for i := range fields {
			same, inside := reader.is(&fields[i])
			switch {
			case !same && (!inside || fields[i].each):
			case fields[i].each:
				results[i].addText(value)
			case !same, string(name) != fields[i].name && string(name) != fields[i].bracketed, results[i].Values != nil, results[i].missing:
				results[i].fail(ErrAmbiguous)
			default:
				results[i].addText(value)
			}
		}
	}
	return results, nil
}

func (f *Found) addText(value []byte) {
	text := string(AppendUnescaped(nil, value))
	if !utf8.ValidString(text) {
		f.fail(fold.ErrBadText)
		return
	}
	f.add(text)
}

// Collect returns everything that a reader who takes the bytes for a form or a query may find of the fields. It is for bytes
// that are declared as something else, and for those that some reader merges with the body. If they have too many fields, or one
// with a long name, each of those found has an error.
func Collect(raw []byte, fields []Field) []Found {
	results := make([]Found, len(fields))
	if bytes.IndexByte(raw, '=') < 0 {
		return results
	}
	count, long := 0, false
	var reader Name
	for name, value := range pairs(raw, "&;") {
		if len(value) == 0 {
			continue
		}
		if count++; count > maxCollected {
			for i := range results {
				results[i].Err = ErrTooManyPairs
			}
			return results
		}
		if len(name) > maxValue {
			long = true
			continue
		}
		reader.Set(name)
		for i := range fields {
			if same, inside := reader.is(&fields[i]); same || inside && !fields[i].each {
				results[i].addText(value)
			}
		}
	}
	if long {
		for i := range results {
			results[i].fail(errLongName)
		}
	}
	return results
}

// pairs yields the names, unescaped, and the values of a form. Both are valid until the next pair.
func pairs(raw []byte, separators string) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		var unescaped []byte
		for len(raw) > 0 {
			pair := raw
			if i := bytes.IndexAny(raw, separators); i >= 0 {
				pair, raw = raw[:i], raw[i+1:]
			} else {
				raw = nil
			}
			if len(pair) == 0 {
				continue
			}
			name, value, _ := bytes.Cut(pair, []byte("="))
			if bytes.IndexByte(name, '%') >= 0 || bytes.IndexByte(name, '+') >= 0 {
				unescaped = AppendUnescaped(unescaped[:0], name)
				name = unescaped
			}
			if !yield(name, value) {
				return
			}
		}
	}
}

// unhex returns the byte that an escape such as %41 stands for.
func unhex(escape []byte) (byte, bool) {
	if len(escape) < 3 || escape[0] != '%' {
		return 0, false
	}
	var c [1]byte
	_, err := hex.Decode(c[:], escape[1:3])
	return c[0], err == nil
}

// AppendUnescaped appends a text of a form with its escapes undone. Anything that is no valid escape stays as it is.
func AppendUnescaped(to, text []byte) []byte {
	to = slices.Grow(to, len(text))
	for len(text) > 0 {
		switch c, ok := unhex(text); {
		case ok:
			to, text = append(to, c), text[3:]
			continue
		case text[0] == '+':
			to = append(to, ' ')
		default:
			to = append(to, text[0])
		}
		text = text[1:]
	}
	return to
}
