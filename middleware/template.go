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
type Template struct {
	parts   []part
	escaped [256]bool
}

// part is a piece of a template: literal text, or a placeholder.
type part struct {
	literal string
	name    string // of the placeholder
	value   KeyFunc
}

// ParseTemplate reads a template. compile gives the meaning of each placeholder; it is Placeholder
// for requests of net/http.
func ParseTemplate(text string, compile func(name string) (KeyFunc, error)) (*Template, error) {
	t := &Template{}
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
			value, err := compile(name)
			if err != nil {
				return err
			}
			if err := t.addLiteral(literal.String(), name); err != nil {
				return err
			}
			literal.Reset()
			t.parts = append(t.parts, part{name: name, value: value})
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
		if p.value != nil {
			return false
		}
	}
	return true
}

// Key derives the lock key of a request. The error is a *KeyError.
func (t *Template) Key(r *http.Request) (string, error) {
	var key strings.Builder
	for _, p := range t.parts {
		if p.value == nil {
			key.WriteString(p.literal)
			continue
		}
		value, err := p.value(r)
		if err == nil && value == "" {
			err = ErrMissingKey
		}
		if err != nil {
			return "", &KeyError{Placeholder: p.name, Err: err}
		}
		t.escape(&key, value)
	}
	return key.String(), nil
}

func (t *Template) escape(key *strings.Builder, value string) {
	const hex = "0123456789ABCDEF"
	for _, c := range []byte(value) {
		if t.escaped[c] {
			key.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			key.WriteByte(c)
		}
	}
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
