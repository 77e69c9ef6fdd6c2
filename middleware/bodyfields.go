package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

// bodyFields are the fields of a rule's templates in the body of one request. The first use of a field reads the body.
type bodyFields struct {
	request *http.Request
	fields  []fields.Field
	of      *fieldSet
	read    bool
	json    bool
	found   []fields.Found
	asForm  []fields.Found // the values for a reader that takes JSON for a form
	query   []fields.Found // the values for a reader that merges the query with the body
	err     error
}

// fieldSet has the body fields of all templates of a rule, so that a body is parsed once for all of them.
type fieldSet struct{ fields []fields.Field }

// add moves the fields of a template into the set. A field that several templates have is in the set once.
func (set *fieldSet) add(t *keyTemplate) {
	at := make([]int, len(t.set.fields))
	for i, f := range t.set.fields {
		at[i] = slices.IndexFunc(set.fields, func(other fields.Field) bool { return reflect.DeepEqual(f, other) })
		if at[i] < 0 {
			at[i], set.fields = len(set.fields), append(set.fields, f)
		}
	}
	for _, p := range t.parts {
		for _, together := range p.sources {
			for i := range together {
				if s := &together[i]; s.value == nil {
					s.field = at[s.field]
				}
			}
		}
	}
	t.set = set
}

// values returns the values of a field in the body, in the format that the request declares.
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
	values, err := f.inBody(s)
	if f.query != nil && f.fields[s.field].Format != fields.Payload && (!f.json || errors.Is(err, ErrMissingKey)) {
		err = beside(values, err, &f.query[s.field])
		if other := (*elsewhereError)(nil); errors.As(err, &other) {
			other.inQuery = true
		}
	}
	return values, err
}

func (f *bodyFields) inBody(s source) ([]string, error) {
	switch {
	case f.found == nil:
		return nil, ErrMissingKey
	case !f.reads(f.fields[s.field].Format):
		return nil, errOtherFormat
	}
	found := &f.found[s.field]
	values, err := found.Result()
	if fields.Some(err) && s.kind != "int64" {
		values = withRounded(values, found)
	}
	ofJSON := f.json || f.fields[s.field].Format == fields.Payload
	if unwrapped := found.Unwrapped(); ofJSON && unwrapped != nil && errors.Is(err, ErrMissingKey) {
		err = beside(values, err, unwrapped)
	}
	return values, err
}

// withRounded adds the rounded values of numbers that many readers round.
func withRounded(values []string, found *fields.Found) []string {
	all := values[:len(values):len(values)]
	for _, number := range found.Rounded() {
		if !slices.Contains(all, number) {
			all = append(all, number)
		}
	}
	return all
}

// errOtherFormat counts as a missing value: the field has a different format than the body.
var errOtherFormat = fmt.Errorf("%w in a body of this format", ErrMissingKey)

// reads reports whether a body in the format of this request can have a field of the given format.
func (f *bodyFields) reads(format string) bool { return format == "" || (format == "json") == f.json }

// mayReadJSON reports whether some field can be read from JSON.
func (f *bodyFields) mayReadJSON() bool {
	return slices.ContainsFunc(f.fields, func(field fields.Field) bool { return field.Format == "" || field.Format == grammar.JSON })
}

// readsOther reports whether the placeholder has an alternative in the body's own format.
func (f *bodyFields) readsOther(p *part) bool {
	return slices.ContainsFunc(p.sources, func(together []source) bool {
		return slices.ContainsFunc(together, func(s source) bool { return s.value == nil && f.reads(f.fields[s.field].Format) })
	})
}

func (f *bodyFields) find() {
	r := f.request
	if r.Body == nil || r.ContentLength == 0 { // there may be a body all the same, if another handler has replaced an empty one
		if raw, err := bodyBytes(r); err != nil || len(raw) == 0 {
			f.err = err
			if !changesNothing(r.Method) {
				f.collectQuery()
			}
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
	case f.json && grammar.Charset(r.Header.Get("Content-Type"), raw) != nil:
		f.err = grammar.ErrParameter
	case f.json:
		f.found, f.err = fields.InJSON(raw, f.fields)
		if slices.ContainsFunc(f.fields, func(field fields.Field) bool { return field.Format == "" }) {
			f.asForm = fields.Collect(raw, f.fields)
		}
	default:
		if f.found, f.err = fields.InForm(raw, f.fields); f.err == nil {
			f.err = fields.InPayload(raw, f.fields, f.found)
		} else if knownFormat(r) == "" && f.mayReadJSON() && grammar.LooksLikeJSON(raw) {
			f.err = grammar.ErrNotForm
		}
	}
	f.collectQuery()
}

// collectQuery finds the values of the fields for a reader that merges the query with the body.
func (f *bodyFields) collectQuery() {
	if f.err != nil || f.request.URL.RawQuery == "" {
		return
	}
	query := []byte(f.request.URL.RawQuery)
	f.query = fields.Collect(query, f.fields)
	if fields.HasPayload(query, f.fields) {
		f.err = ErrAmbiguousKey
	}
}

// changesNothing reports whether requests with this method change nothing. Such a request has no form, unless it has a body, so no reader takes its
// query for a form.
func changesNothing(method string) bool {
	return slices.Contains([]string{"", http.MethodGet, http.MethodHead, http.MethodOptions}, method)
}

// withForm adds the values that a reader finds if it takes JSON for a form.
func (f *bodyFields) withForm(p *part, values []string, err error) ([]string, error) {
	if err != nil && !errors.Is(err, ErrMissingKey) {
		return nil, err
	}
	for _, s := range slices.Concat(p.sources...) {
		if s.value != nil || f.fields[s.field].Format != "" {
			continue
		}
		aside := &f.asForm[s.field]
		if fields.TooMany(aside.Err) {
			return nil, aside.Err // aside lacks some values
		}
		for _, value := range aside.Values {
			if value, bad := fold.Value(value); bad == nil && value != "" {
				values = append(values, s.label+value)
			}
		}
	}
	if err != nil && len(values) > 0 {
		return nil, ErrAmbiguousKey // one reader finds no value, and the other finds one
	}
	return values, err
}

// elsewhereError counts as a missing value, although some reader finds these values in another place: in the query, or elsewhere in the JSON.
type elsewhereError struct {
	values  []string
	inQuery bool
}

func (*elsewhereError) Error() string { return ErrMissingKey.Error() + " here, and given elsewhere" }

func (*elsewhereError) Unwrap() error { return ErrMissingKey }

// beside returns an error if some reader may find a different value for a field in another place, or if that place can't be read. aside has the
// values in that place. For example, some readers merge the query with the body.
func beside(values []string, err error, aside *fields.Found) error {
	switch {
	case aside.Err != nil:
		return ErrAmbiguousKey
	case errors.Is(err, ErrMissingKey) && len(aside.Values) > 0:
		return &elsewhereError{values: aside.Values}
	}
	if !hasAll(values, aside.Values) {
		return cmp.Or(err, ErrAmbiguousKey)
	}
	return err
}

func hasAll(values, some []string) bool {
	return !slices.ContainsFunc(some, func(one string) bool {
		return !slices.ContainsFunc(values, func(value string) bool { return fold.Same(value, one) })
	})
}

const errContentType = fold.Error("Content-Type is given more than once")

// isJSON reports whether a body is read as JSON, and not as a form. It refuses a body that the handler might read differently.
func isJSON(r *http.Request) (bool, error) {
	if isEncoded(r) {
		return false, errBodyEncoded
	}
	header, err := oneHeader(r, "Content-Type")
	if err == ErrAmbiguousKey {
		return false, errContentType
	}
	format, err := grammar.Format(header, knownFormat(r))
	if format == "" {
		return false, errBodyFormat
	}
	return format == grammar.JSON, err
}

// knownFormat returns the format that the rule gives for all bodies, or "".
func knownFormat(r *http.Request) string {
	if b, ok := r.Body.(*body); ok {
		return b.rule.BodyFormat
	}
	return ""
}

func isEncoded(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Content-Encoding"], func(encoding string) bool { return encoding != "" && !strings.EqualFold(encoding, "identity") })
}
