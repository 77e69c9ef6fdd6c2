package fields

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

const (
	maxPairs     = 1_000  // the most pairs in a form or query; PHP, Express and node's querystring drop any further ones
	maxCollected = 10_000 // the most pairs that may be fields, in JSON or a query that some reader takes for a form
)

var (
	errTooManyPairs     error = fold.Error(fmt.Sprintf("form or query has more than %d fields", maxPairs))
	errTooManyCollected error = fold.Error(fmt.Sprintf("more than %d pairs such as a=b, which some reader takes for the fields of a form; send fewer, or read the field with {json.…}", maxCollected))
)

// InForm finds fields in a form or query in one pass, and keeps only their values. It refuses a name that some reader takes for the
// name of a field, such as ID, id[] or [id] for id, even if that name is the only one in the form. For a list, all of these names count.
func InForm(raw []byte, fields []Field) ([]Found, error) {
	if err := grammar.Form(raw); err != nil {
		return nil, err
	}
	if bytes.Count(raw, []byte("&")) >= maxPairs { // Express counts empty pairs too
		return nil, errTooManyPairs
	}
	results := make([]Found, len(fields))
	may := initialsOf(fields)
	var reader Name
	for name, value := range pairs(raw, '&') {
		if err := grammar.FormName(name); err != nil {
			return nil, err
		}
		if !may.begin(name) {
			continue
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

// Collect returns all values of the fields that some reader may find if it takes the bytes for a form. The bytes are JSON, or a query that some
// reader merges with the body, for example. If too many pairs may be the fields, all of the results have an error.
func Collect(raw []byte, fields []Field) []Found {
	results := make([]Found, len(fields))
	if bytes.IndexByte(raw, '=') < 0 {
		return results
	}
	count, may := 0, initialsOf(fields)
	var reader Name
	for name, value := range pairs(raw, ';') {
		if len(value) == 0 || !may.begin(name) {
			continue
		}
		if count++; count > maxCollected {
			for i := range results {
				results[i].Err = errTooManyCollected
			}
			return results
		}
		reader.Set(name)
		for i := range fields {
			if same, inside := reader.is(&fields[i]); same || inside && !fields[i].each {
				results[i].addText(value)
			}
		}
	}
	return results
}

// TooMany reports whether the error means that Collect has left out values.
func TooMany(err error) bool { return err == ErrTooMany || err == errTooManyCollected }

// pairs yields the unescaped names and the values of a form, whose pairs end at "&" or at the separator. A name and a value are valid until
// the next pair.
func pairs(raw []byte, separator byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		var unescaped []byte
		for len(raw) > 0 {
			end, equals, escaped := 0, -1, false
			for ; end < len(raw) && raw[end] != '&' && raw[end] != separator; end++ {
				switch c := raw[end]; {
				case c > '=' || equals >= 0: // most bytes are letters, so look for them first
				case c == '=':
					equals = end
				case c == '%', c == '+':
					escaped = true
				}
			}
			name, value := raw[:end], raw[end:end]
			if equals >= 0 {
				name, value = raw[:equals], raw[equals+1:end]
			}
			raw = raw[min(end+1, len(raw)):]
			if escaped {
				unescaped = AppendUnescaped(unescaped[:0], name)
				name = unescaped
			}
			if end > 0 && !yield(name, value) {
				return
			}
		}
	}
}

// AppendUnescaped appends a text of a form without its escapes. An invalid escape stays as it is.
func AppendUnescaped(to, text []byte) []byte {
	to = slices.Grow(to, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '+' {
			c = ' '
		} else if c == '%' && i+2 < len(text) {
			if high, low := fold.Hex(text[i+1]), fold.Hex(text[i+2]); high < 16 && low < 16 {
				c, i = high<<4|low, i+2
			}
		}
		to = append(to, c)
	}
	return to
}

// Payload is the format of a field in JSON that is itself the value of the field "payload" of a form. GitHub and Slack send such forms.
const Payload = "payload"

// InPayload finds the fields of the format payload in the JSON inside a form. Their values replace the values that the form itself has
// under the same names.
func InPayload(raw []byte, fields []Field, found []Found) error {
	var at []int
	var inside []Field
	for i, field := range fields {
		if field.Format == Payload {
			at, inside = append(at, i), append(inside, field)
		}
	}
	if len(at) == 0 {
		return nil
	}
	values := make([]Found, len(inside))
	value, err := payloadOf(raw)
	if err == nil {
		values, err = InJSON(AppendUnescaped(nil, value), inside)
	}
	if err != nil && !errors.Is(err, ErrMissing) {
		return err
	}
	for i := range at {
		found[at[i]] = values[i]
	}
	return nil
}

// HasPayload reports whether some reader finds a payload in a query. It looks only if a field has the format payload.
func HasPayload(query []byte, fields []Field) bool {
	if !slices.ContainsFunc(fields, func(field Field) bool { return field.Format == Payload }) {
		return false
	}
	wanted, err := Parse(Payload)
	found := Collect(query, []Field{wanted})[0]
	return err != nil || found.Err != nil || len(found.Values) > 0
}

// payloadOf returns the value of the field "payload" of a form, still escaped.
func payloadOf(raw []byte) (payload []byte, err error) {
	wanted, err := Parse(Payload)
	if err != nil {
		return nil, err
	}
	err = ErrMissing
	var reader Name
	for name, value := range pairs(raw, '&') {
		reader.Set(name)
		if same, inside := reader.is(&wanted); !same && !inside {
			continue
		}
		if err == nil || string(name) != Payload {
			return nil, ErrAmbiguous
		}
		payload, err = value, nil
	}
	return payload, err
}
