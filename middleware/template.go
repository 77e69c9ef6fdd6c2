package middleware

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// KeyFunc derives a lock key from a request. An error that matches ErrMissingKey, or an empty key, means that the request lacks
// something that the key is made of; any other error means that no certain key can be made of it. Both are answered with 400.
type KeyFunc func(*http.Request) (string, error)

// PlaceholderFunc returns the function that reads the value of a placeholder, given its name without braces. Placeholder is
// the one for net/http.
type PlaceholderFunc func(name string) (KeyFunc, error)

// Template is a key template: text with placeholders in braces, such as "order:{path.1}". A literal brace is written \{ or \}.
//
// Different values make different keys. In each value every byte except letters, digits and "-._~" is written as %XX. Of these
// four, those that separate two placeholders of the template are escaped too: "{query.a}:{query.b}" makes "x%3Ay:z" of "x:y"
// and "z", and "x:y%3Az" of "x" and "y:z".
//
// Besides the placeholders of its PlaceholderFunc, a template can have these, which make it read the body:
//
//	{body.a.b}          the field b of the object a in JSON, or the field a.b or a[b] of a form;
//	                    a number is the index of an element of an array
//	{body.items[].id}   that field of each element, which makes a key of each; it is an error if only some
//	                    of the elements have it
//	{json.a} {form.a}   the same, but only in JSON, or only in a form
//	{payload.a}         a field of the JSON in the field payload of a form, as GitHub and Slack send it
//
// And every placeholder can be combined:
//
//	{a|b}        the first of a and b that the request has
//	{a|name=b}   the same, with "name=" before the value of b, so that it can't equal that of a
//	{a&b}        each of a and b that the request has, which makes a key of each. It is for senders that you
//	             trust: a client that leaves one out has fewer keys
//	{a:int}      a, if it is a whole number; other kinds are int64, uuid and id
type Template struct {
	parts     []part
	set       *fieldSet // its fields of the body, and those of the rule's other templates
	readsBody bool
	each      int // index of the part that may have several values; -1 for none
	escaped   [256]bool
}

// part is a piece of a template: literal text, or a placeholder.
type part struct {
	literal string
	name    string     // of the placeholder
	sources [][]source // its alternatives, each of one or more sources that are taken together
}

// source is where a value may come from.
type source struct {
	value KeyFunc // nil for a field of the body
	field int     // index of that field
	kind  string  // that the value must be of, one of fold.Kinds; empty for any
	label string  // that the key has before the value
	exact bool    // the value is taken as it is, and not folded
}

// ParseTemplate reads a template. The placeholders that are not fields of the body are compiled by the given function, which
// is Placeholder for net/http.
func ParseTemplate(text string, compile PlaceholderFunc) (*Template, error) {
	t := &Template{each: -1, set: new(fieldSet)}
	if err := t.parse(text, compile); err != nil {
		return nil, fmt.Errorf("key template %q: %w", text, err)
	}
	return t, nil
}

func (t *Template) parse(text string, compile PlaceholderFunc) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	for c := range t.escaped {
		t.escaped[c] = !fold.IsAlphanumeric(byte(c)) && !strings.ContainsRune("-._~", rune(c))
	}
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '}'):
			i++
			literal.WriteByte(text[i])
		case c == '}':
			return fmt.Errorf(`"}" at position %d closes nothing; a literal one is written \}`, i+1)
		case c == '{':
			name, _, ok := strings.Cut(text[i+1:], "}")
			if !ok {
				return fmt.Errorf(`"{" at position %d is not closed; a literal one is written \{`, i+1)
			}
			if err := t.addLiteral(literal.String(), name); err != nil {
				return err
			}
			literal.Reset()
			if err := t.addPlaceholder(name, compile); err != nil {
				return err
			}
			i += len(name) + 1
		default:
			literal.WriteByte(c)
		}
	}
	if literal.Len() > 0 {
		t.parts = append(t.parts, part{literal: literal.String()})
	}
	return nil
}

func (t *Template) addPlaceholder(name string, compile PlaceholderFunc) error {
	p := part{name: name}
	for alternative := range strings.SplitSeq(name, "|") {
		var together []source
		for text := range strings.SplitSeq(alternative, "&") {
			s, isNew, err := t.source(text, &p, compile)
			if err == nil && strings.Contains(name, "&") {
				err = t.setEach()
			}
			if err != nil {
				return fmt.Errorf("{%s}: %w", text, err)
			}
			if isNew {
				together = append(together, s)
			}
		}
		if together != nil {
			p.sources = append(p.sources, together)
		}
	}
	t.parts = append(t.parts, p)
	return nil
}

// setEach notes that the next placeholder may have several values.
func (t *Template) setEach() error {
	if t.each >= 0 && t.each < len(t.parts) {
		return errors.New("only one placeholder may have [] or &; name a second key for the others")
	}
	t.each = len(t.parts)
	return nil
}

// source reads one alternative of a placeholder. It is not new if it was joined to the alternative before it.
func (t *Template) source(text string, p *part, compile PlaceholderFunc) (s source, isNew bool, err error) {
	if label, rest, ok := strings.Cut(text, "="); ok && label != "" && strings.Trim(label, labelLetters) == "" {
		s.label, text = label+string(labelEnd), rest
	}
	if text, s.kind, err = cutKind(text); err != nil {
		return s, false, err
	}
	family, path, ofBody := strings.Cut(text, ".")
	if strings.TrimSpace(text) != text || strings.TrimSpace(path) != path {
		return s, false, errBlank
	}
	if !ofBody || !slices.Contains([]string{"body", "json", "form", "payload"}, family) {
		s.value, err = compile(text)
		return s, true, err
	}
	f, err := fields.Parse(path)
	if err == nil && family == "form" {
		err = fields.CheckName(path)
	}
	if err != nil {
		return s, false, err
	}
	if family != "body" {
		f.Format = family
	}
	if f.Several() {
		if err := t.setEach(); err != nil {
			return s, false, err
		}
	}
	if last := len(p.sources) - 1; last >= 0 && !strings.Contains(p.name, "&") {
		before := p.sources[last][0]
		if before.value == nil && before.label == s.label && t.set.fields[before.field].Join(f) {
			if before.kind != s.kind {
				err = errors.New("alternatives in one list must be of one kind")
			}
			return s, false, err
		}
	}
	s.field = len(t.set.fields)
	t.set.fields, t.readsBody = append(t.set.fields, f), true
	return s, true, nil
}

const (
	labelLetters = "abcdefghijklmnopqrstuvwxyz"
	labelEnd     = '\x00' // which no value may contain
)

// cutKind splits {path.1:int} into the name and the kind that it expects. A colon in a name is written \:.
func cutKind(text string) (name, kind string, err error) {
	i := strings.LastIndexByte(text, ':')
	if i > 0 && text[i-1] != '\\' {
		text, kind = text[:i], text[i+1:]
		if fold.Kinds[kind] == nil {
			return "", "", fmt.Errorf("unknown kind %q; want one of %s; write \\: for a colon in a name", kind, strings.Join(slices.Sorted(maps.Keys(fold.Kinds)), ", "))
		}
	}
	return strings.ReplaceAll(text, `\:`, ":"), kind, nil
}

// addLiteral adds the text before the placeholder next. Between two placeholders it must contain a byte that no value
// contains, so that it is certain where the first value ends.
func (t *Template) addLiteral(text, next string) error {
	if len(t.parts) > 0 {
		separates := false
		for _, c := range []byte(text) {
			if !fold.IsAlphanumeric(c) && c != '%' {
				t.escaped[c] = true
				separates = true
			}
		}
		if !separates {
			return fmt.Errorf(`nothing separates {%s} from {%s}: different values could make one key; put a ":" between them`, t.parts[len(t.parts)-1].name, next)
		}
	}
	if text != "" {
		t.parts = append(t.parts, part{literal: text})
	}
	return nil
}

// setExact has the template take values as they are: for what must not be taken for something else, rather than be found in
// every spelling.
func (t *Template) setExact() {
	for _, p := range t.parts {
		for _, together := range p.sources {
			for i := range together {
				together[i].exact = true
			}
		}
	}
}

// isValue reports whether the template is a single placeholder without labels.
func (t *Template) isValue() bool {
	labeled := func(s source) bool { return s.label != "" }
	return len(t.parts) == 1 && !slices.ContainsFunc(t.parts[0].sources, func(together []source) bool { return slices.ContainsFunc(together, labeled) })
}

// Global reports whether the template has no placeholder, so that all requests share one lock.
func (t *Template) Global() bool {
	for _, p := range t.parts {
		if p.sources != nil {
			return false
		}
	}
	return true
}

// ErrMissingKey reports that a request lacks a part of its key, or that this part is empty.
var ErrMissingKey = fields.ErrMissing

// ErrAmbiguousKey reports that a request gives a part of its key more than once: the lock could be on one value while the
// handler reads another.
var ErrAmbiguousKey = fields.ErrAmbiguous

// KeyError names the part of the key for which a request has no certain value. It shows no value of the request.
type KeyError struct {
	Placeholder string // without braces
	Err         error
}

func (e *KeyError) Error() string { return "key part {" + e.Placeholder + "}: " + e.Err.Error() }

// Unwrap returns ErrMissingKey, ErrAmbiguousKey or what else is wrong.
func (e *KeyError) Unwrap() error { return e.Err }

// ReadsBody reports whether a key of the template may have a field of the body.
func (t *Template) ReadsBody() bool { return t.readsBody }
