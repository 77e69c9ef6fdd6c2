package traefik

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// template is a key template like those of package middleware (template.go): text with placeholders in braces. Different values
// make different keys, and one value makes one key, however it is spelled; what is ambiguous is refused.
type template struct {
	parts   []*part
	escaped [256]bool
}

// part is a piece of a template: literal text, or a placeholder.
type part struct {
	literal string
	name    string    // what the braces of the placeholder contain
	sources []*source // its alternatives
}

// source is where a value is read from.
type source struct {
	family string // path, segment, header, query, cookie, method or host
	arg    string // the name: of a header the canonical one, of a cookie as PHP reads it
	given  string // cookie: the name as it stands in the template
	n      int    // segment: which one
	field  *field // query: the parameter
	kind   string // the kind that the value must have; empty for any
}

func parseTemplate(text string) (*template, error) {
	t := &template{}
	err := t.parse(text)
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", text, err)
	}
	return t, nil
}

func (t *template) parse(text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	for c := 0; c < 256; c++ {
		t.escaped[c] = !isAlphanumeric(byte(c)) && strings.IndexByte("-._~", byte(c)) < 0
	}
	literal := ""
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text) && (text[i+1] == '{' || text[i+1] == '}'):
			i++
			literal += text[i : i+1]
		case c == '}':
			return fmt.Errorf(`"}" at position %d is not opened; a literal one is written \}`, i+1)
		case c == '{':
			name, _, ok := strings.Cut(text[i+1:], "}")
			if !ok {
				return fmt.Errorf(`"{" at position %d is not closed; a literal one is written \{`, i+1)
			}
			err := t.addLiteral(literal, name)
			if err == nil {
				err = t.addPlaceholder(name)
			}
			if err != nil {
				return err
			}
			literal = ""
			i += len(name) + 1
		default:
			literal += text[i : i+1]
		}
	}
	if literal != "" {
		t.parts = append(t.parts, &part{literal: literal})
	}
	return nil
}

func (t *template) addPlaceholder(name string) error {
	p := &part{name: name}
	if strings.Contains(name, "&") { // a header may have this byte in its name, so that nothing else would refuse it
		return fmt.Errorf("{%s}: the plugin for Traefik makes one key, and & makes several; to lock several, put Caddy with its module behind Traefik", name)
	}
	for _, alternative := range strings.Split(name, "|") {
		s, err := parseSource(alternative)
		if err != nil {
			return fmt.Errorf("{%s}: %w", alternative, err)
		}
		p.sources = append(p.sources, s)
	}
	t.parts = append(t.parts, p)
	return nil
}

// reads reports whether the key is made of a header.
func (t *template) reads(header string) bool {
	for _, p := range t.parts {
		for _, s := range p.sources {
			if s.family == "header" && sameHeader(s.arg, header) {
				return true
			}
		}
	}
	return false
}

// addLiteral adds the text before the placeholder next. Between two placeholders it must have a byte that is escaped in values, so
// that it is certain where one value ends.
func (t *template) addLiteral(text, next string) error {
	if len(t.parts) > 0 {
		separates := false
		for i := 0; i < len(text); i++ {
			if !isAlphanumeric(text[i]) && text[i] != '%' {
				t.escaped[text[i]] = true
				separates = true
			}
		}
		if !separates {
			return fmt.Errorf(`nothing separates {%s} from {%s}: different values could make one key; put a ":" between them`, t.parts[len(t.parts)-1].name, next)
		}
	}
	if text != "" {
		t.parts = append(t.parts, &part{literal: text})
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

var (
	errMissing   = errors.New("missing or empty")
	errAmbiguous = errors.New("given more than once")
)

// key derives the lock key of a request. If that fails, the error is errMissing, or says what is ambiguous, and of is the placeholder
// concerned. The error contains no value of the request.
func (t *template) key(r *http.Request) (key, of string, err error) {
	for _, p := range t.parts {
		if p.sources == nil {
			key += p.literal
			continue
		}
		value := ""
		for _, s := range p.sources {
			value, err = s.folded(r)
			if err != errMissing {
				break
			}
		}
		if err != nil {
			return "", p.name, err
		}
		key += t.escape(value)
	}
	if key == "" {
		return "", "", errMissing
	}
	return key, "", nil
}

// folded returns the value as it stands in a key.
func (s *source) folded(r *http.Request) (string, error) {
	value, err := s.value(r)
	if err != nil {
		return "", err
	}
	if s.kind != "" && value != "" && !isOfKind(s.kind, value) {
		return "", errors.New("not of the kind " + s.kind + " in its one spelling")
	}
	value, err = foldValue(value)
	if err == nil && value == "" {
		err = errMissing
	}
	return value, err
}

func (t *template) escape(value string) string {
	const hexDigits = "0123456789ABCDEF"
	plain := true
	for i := 0; i < len(value) && plain; i++ {
		plain = !t.escaped[value[i]]
	}
	if plain {
		return value
	}
	out := make([]byte, 0, 3*len(value))
	for i := 0; i < len(value); i++ {
		c := value[i]
		if t.escaped[c] {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}
