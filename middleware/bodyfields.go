package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

const formType = "application/x-www-form-urlencoded"

// bodyFields are the fields of a rule's templates in the body of one request, which is read when the first of them is asked for.
type bodyFields struct {
	request *http.Request
	fields  []fields.Field
	of      *fieldSet
	read    bool
	json    bool
	found   []fields.Found
	aside   []fields.Found // what another reader may find: in JSON read as a form, or in the query next to a form
	err     error
}

// fieldSet has the fields of the body of all templates of a rule, so that a body is parsed once for all of them.
type fieldSet struct{ fields []fields.Field }

// take moves the fields of a template into the set.
func (set *fieldSet) take(t *Template) {
	for _, p := range t.parts {
		for _, together := range p.sources {
			for i := range together {
				together[i].field += len(set.fields) // which means nothing to others than fields of the body
			}
		}
	}
	set.fields = append(set.fields, t.set.fields...)
	t.set = set
}

// in returns what the body of a request has for the template.
func (t *Template) in(r *http.Request) *bodyFields {
	if t.readsBody {
		if b, ok := r.Body.(*body); ok && b.parsed != nil && b.parsed.of == t.set {
			return b.parsed
		}
	}
	return &bodyFields{request: r, fields: t.set.fields, of: t.set}
}

// values returns what the body has of a field, in the format that the request declares.
func (f *bodyFields) values(s source) ([]string, error) {
	if !f.read {
		f.read = true
		f.find()
		if b, ok := f.request.Body.(*body); ok {
			b.parsed = f
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	if f.found != nil && !f.reads(f.fields[s.field].Format) {
		return nil, errOtherFormat
	}
	if f.found == nil {
		return nil, ErrMissingKey
	}
	found := &f.found[s.field]
	values, err := found.Result()
	if fields.Some(err) && s.kind != "int64" {
		values = withRounded(values, found)
	}
	switch unwrapped := found.Unwrapped(); {
	case !f.json && f.fields[s.field].Format == "":
		err = beside(values, err, &f.aside[s.field])
	case unwrapped != nil && errors.Is(err, ErrMissingKey):
		err = beside(values, err, unwrapped)
	}
	return values, err
}

// withRounded adds the numbers to which many readers round those among the values.
func withRounded(values []string, found *fields.Found) []string {
	all := values[:len(values):len(values)]
	for _, number := range found.Rounded() {
		if !slices.Contains(all, number) {
			all = append(all, number)
		}
	}
	return all
}

// errOtherFormat counts as a missing value: the field is of another format than the body.
var errOtherFormat = fmt.Errorf("%w in a body of this format", ErrMissingKey)

// reads reports whether a field of this format may be in the body.
func (f *bodyFields) reads(format string) bool { return format == "" || (format == "json") == f.json }

// readsOther reports whether the placeholder has another field, of the body's own format.
func (f *bodyFields) readsOther(p *part) bool {
	return slices.ContainsFunc(p.sources, func(together []source) bool {
		return slices.ContainsFunc(together, func(s source) bool { return s.value == nil && f.reads(f.fields[s.field].Format) })
	})
}

func (f *bodyFields) find() {
	r := f.request
	if r.Body == nil || r.ContentLength == 0 { // another handler may have wrapped an empty body, or put another one in its place
		if raw, err := bodyBytes(r); err != nil || len(raw) == 0 {
			f.err = err
			return
		}
	}
	var raw []byte
	f.json, f.err = isJSON(r)
	if f.err == nil {
		raw, f.err = bodyBytes(r)
	}
	switch {
	case f.err != nil || len(raw) == 0:
	case f.json:
		f.found, f.err = fields.InJSON(raw, f.fields)
		if f.collect(raw); f.err == nil && f.aside != nil && f.aside[0].Err == fields.ErrTooManyPairs {
			f.err = fields.ErrTooManyPairs
		}
	default:
		if f.found, f.err = fields.InForm(raw, f.fields); f.err == nil {
			f.err = fields.InPayload(raw, f.fields, f.found)
		}
		f.collect([]byte(r.URL.RawQuery))
	}
}

// collect finds the values that are a form to another reader. It does nothing if no field may have any.
func (f *bodyFields) collect(raw []byte) {
	if slices.ContainsFunc(f.fields, func(field fields.Field) bool { return field.Format == "" }) {
		f.aside = fields.Collect(raw, f.fields)
	}
}

// readAside reports whether a reader that reads the body differently finds anything.
func (f *bodyFields) readAside() bool {
	for i, found := range f.aside {
		if len(found.Values) > 0 && f.fields[i].Format == "" {
			return true
		}
	}
	return false
}

// elsewhereError counts as a missing value, which another reader finds elsewhere.
type elsewhereError struct{ values []string }

func (*elsewhereError) Error() string { return ErrMissingKey.Error() + " here, and given elsewhere" }
func (*elsewhereError) Unwrap() error { return ErrMissingKey }

// beside compares the values of a body with those of the query, or the other way round: some readers merge the two.
func beside(values []string, err error, aside *fields.Found) error {
	switch {
	case aside.Err != nil:
		return ErrAmbiguousKey
	case errors.Is(err, ErrMissingKey) && len(aside.Values) > 0:
		return &elsewhereError{aside.Values}
	}
	if !hasAll(values, aside.Values) {
		return cmp.Or(err, ErrAmbiguousKey)
	}
	return err
}

// hasAll reports whether each of some values is among others.
func hasAll(values, some []string) bool {
	return !slices.ContainsFunc(some, func(one string) bool {
		return !slices.ContainsFunc(values, func(value string) bool { return fold.Same(value, one) })
	})
}

const errContentType = fold.Error("Content-Type is given more than once")

// isJSON reports whether a body is read as JSON, and not as a form. A body that the handler might read differently is
// refused.
func isJSON(r *http.Request) (bool, error) {
	for _, encoding := range r.Header["Content-Encoding"] {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return false, errBodyEncoded
		}
	}
	header, err := oneHeader(r, "Content-Type")
	if err == ErrAmbiguousKey {
		return false, errContentType
	}
	media, err := grammar.Media(header)
	json := media == "application/json" || strings.HasSuffix(media, "+json")
	if !json && media != formType {
		return false, errBodyFormat
	}
	return json, err
}
