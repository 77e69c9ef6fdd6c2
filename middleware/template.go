package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// KeyFunc derives the lock key from a request. An error that matches ErrMissingKey, or an empty
// key, is a request that lacks what the key is made of; any other error is a request from which no
// certain key can be made. Both are answered with 400.
type KeyFunc func(*http.Request) (string, error)

// Template is a key template: text with placeholders in braces, such as "order:{path.1}". A brace
// that is meant literally is written \{ or \}.
//
// Different values give different keys. In each value every byte but letters, digits and "-._~" is
// written as %XX, and so is, of these four, what stands between two placeholders of the template:
// "{query.a}:{query.b}" makes "x%3Ay:z" of "x:y" and "z", and "x:y%3Az" of "x" and "y:z".
//
// {body.a.b} is a field of a body in JSON, or the field a.b of a form; a number is the index in an
// array. {body.items[].id} is that field of each element, and makes a key of each; one that only some of
// the elements have is an error. The body is read only if the template has such placeholders. {a|b} is
// the first of a and b that is there, {body.items[].a|body.items[].b} that for each element.
type Template struct {
	parts   []part
	fields  []field // of the body
	each    int     // the part that may have several values; -1 for none
	escaped [256]bool
}

// part is a piece of a template: literal text, or a placeholder.
type part struct {
	literal string
	name    string   // of the placeholder
	sources []source // its alternatives
}

// source is where a value may come from.
type source struct {
	value KeyFunc // nil for a field of the body
	field int
}

// ParseTemplate reads a template. compile gives the meaning of each placeholder but those of the
// body; it is Placeholder for requests of net/http.
func ParseTemplate(text string, compile func(name string) (KeyFunc, error)) (*Template, error) {
	t := &Template{each: -1}
	if err := t.parse(text, compile); err != nil {
		return nil, fmt.Errorf("key template %q: %w", text, err)
	}
	return t, nil
}

func (t *Template) parse(text string, compile func(name string) (KeyFunc, error)) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	for c := range t.escaped {
		t.escaped[c] = !isAlphanumeric(byte(c)) && !strings.ContainsRune("-._~", rune(c))
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

func (t *Template) addPlaceholder(name string, compile func(name string) (KeyFunc, error)) error {
	p := part{name: name}
	for alternative := range strings.SplitSeq(name, "|") {
		var s source
		var err error
		if path, ok := strings.CutPrefix(alternative, "body."); ok {
			var f field
			f, err = parseField(path)
			if f.each && t.each >= 0 && t.each < len(t.parts) {
				err = fmt.Errorf("{%s}: only one placeholder may have []; name a second key for the others", name)
			} else if f.each {
				t.each = len(t.parts)
			}
			if last := len(p.sources) - 1; err == nil && last >= 0 && p.sources[last].value == nil && t.fields[p.sources[last].field].join(f) {
				continue
			}
			s.field = len(t.fields)
			t.fields = append(t.fields, f)
		} else {
			s.value, err = compile(alternative)
		}
		if err != nil {
			return err
		}
		p.sources = append(p.sources, s)
	}
	t.parts = append(t.parts, p)
	return nil
}

// addLiteral adds the text before the placeholder next. Between two placeholders it must hold a
// byte that no value contains, so that it is certain where one value ends.
func (t *Template) addLiteral(text, next string) error {
	if len(t.parts) > 0 {
		separates := false
		for _, c := range []byte(text) {
			if !isAlphanumeric(c) && c != '%' {
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

// Global says whether the template has no placeholder, so that all requests share one lock.
func (t *Template) Global() bool {
	for _, p := range t.parts {
		if p.sources != nil {
			return false
		}
	}
	return true
}

// Key derives the lock key of a request, where the template makes one. The error is a *KeyError.
func (t *Template) Key(r *http.Request) (string, error) {
	if t.each >= 0 {
		return "", &KeyError{Placeholder: t.parts[t.each].name, Err: ErrAmbiguousKey}
	}
	return t.key(&fields{request: r, fields: t.fields}, "")
}

// Keys derives the lock keys of a request, several if the template has a placeholder with []. The
// error is a *KeyError.
func (t *Template) Keys(r *http.Request) ([]string, error) {
	found := &fields{request: r, fields: t.fields}
	values := []string{""}
	if t.each >= 0 {
		var err error
		if values, err = t.parts[t.each].values(found, nil); err != nil {
			return nil, err
		}
	}
	keys := make([]string, len(values))
	for i, value := range values {
		var err error
		if keys[i], err = t.key(found, value); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// key makes the key in which the placeholder with [] has the value each.
func (t *Template) key(found *fields, each string) (string, error) {
	key, one := make([]byte, 0, maxKey), [1]string{} // on the stack
	for i := range t.parts {
		p, value := &t.parts[i], each
		if p.sources == nil {
			key = append(key, p.literal...)
			continue
		}
		if i != t.each {
			values, err := p.values(found, one[:0])
			if err != nil {
				return "", err
			}
			value = values[0]
		}
		key = t.escape(key, value)
	}
	return string(key), nil
}

// values gives what the first source has that has anything, in the room given if it is one.
func (p *part) values(found *fields, room []string) (values []string, err error) {
	for _, s := range p.sources {
		if s.value == nil {
			values, err = found.values(s.field)
		} else {
			var value string
			if value, err = s.value(found.request); err == nil && value == "" {
				err = ErrMissingKey
			}
			values = append(room, value)
		}
		if !errors.Is(err, ErrMissingKey) {
			break
		}
	}
	if err != nil {
		return nil, &KeyError{Placeholder: p.name, Err: err}
	}
	return values, nil
}

// escape appends a value to a key.
func (t *Template) escape(key []byte, value string) []byte {
	const hex = "0123456789ABCDEF"
	for _, c := range []byte(value) {
		if t.escaped[c] {
			key = append(key, '%', hex[c>>4], hex[c&15])
		} else {
			key = append(key, c)
		}
	}
	return key
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// ErrMissingKey says that a request lacks a part of its key, or that it is empty.
var ErrMissingKey = errors.New("missing or empty")

// ErrAmbiguousKey says that a request gives a part of its key more than once: the lock could be on
// one value while the handler reads another.
var ErrAmbiguousKey = errors.New("given more than once")

// KeyError says which part of the key a request lacks. It holds no value of the request.
type KeyError struct {
	Placeholder string // without braces
	Err         error
}

func (e *KeyError) Error() string { return "key part {" + e.Placeholder + "}: " + e.Err.Error() }

// Unwrap gives ErrMissingKey, ErrAmbiguousKey or what else is wrong.
func (e *KeyError) Unwrap() error { return e.Err }
