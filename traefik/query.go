package traefik

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// field is a parameter of the query, as package middleware finds it: order.id is also order[id].
type field struct {
	name, bracketed string
	paths           [][]*nameStep // what some readers make of these names
}

// nameStep is a part of a path of names: order[items][0] has three.
type nameStep struct {
	text     string
	optional bool // the index in a list, which items[] leaves out
}

const (
	maxPairs = 1000 // PHP, Express and node's querystring leave out the rest
	maxSteps = 16
	maxValue = 4 << 10 // bytes of a value, and of a name
)

var (
	errBadForm  = errors.New("not a valid query")
	errFormToo  = errors.New("the request has a form as well as a query, which some readers merge; this plugin does not read forms")
	errTooLong  = errors.New("longer than 4096 bytes")
	errTooMany  = errors.New("query has more than 1000 fields")
	errLongName = errors.New("query has a name longer than 4096 bytes")
	errListName = errors.New("a list has several values; the plugin for Traefik makes one key")
)

// parseField parses what follows "query." in a placeholder: names and numbers, separated by dots. A dot in a name is written \.
func parseField(text string) (*field, error) {
	const dot = "\x00"
	f := &field{name: strings.ReplaceAll(text, `\.`, ".")}
	var nested, php []*nameStep
	parts := strings.Split(strings.ReplaceAll(text, `\.`, dot), ".")
	if len(parts) > maxSteps {
		return nil, fmt.Errorf("%q: more than %d names", text, maxSteps)
	}
	for i, part := range parts {
		name := strings.ReplaceAll(part, dot, ".")
		if strings.HasSuffix(name, "[]") {
			return nil, errListName
		}
		if name == "" {
			return nil, fmt.Errorf("%q: want the name of a field, such as order.id", text)
		}
		index, err := strconv.Atoi(name)
		isIndex := err == nil && strconv.Itoa(index) == name && index >= 0
		read := readName(name)
		if read.unsure {
			return nil, errors.New("the name has a character that can be written in several ways")
		}
		for _, step := range strings.Split(read.nested, ".") {
			nested = append(nested, &nameStep{text: step, optional: isIndex})
		}
		if i == 0 {
			f.bracketed = name
			php = append(php, &nameStep{text: read.php})
		} else {
			f.bracketed += "[" + name + "]"
			php = append(php, &nameStep{text: strings.ToLower(name), optional: isIndex})
		}
	}
	f.paths = append(f.paths, nested, php)
	if len(parts) > 1 {
		f.paths = append(f.paths, []*nameStep{{text: readName(f.name).php}})
	}
	return f, nil
}

// inQuery returns the value of the field. Names that some readers take for that of the field, such as ID, id[] and [id] for id, are
// refused, even if the query has no other.
func (f *field) inQuery(r *http.Request) (string, error) {
	raw := r.URL.RawQuery
	if strings.Contains(raw, "#") || strings.Contains(r.RequestURI, "#") { // some readers end the query there
		return "", errBadForm
	}
	if maybeForm(r) {
		return "", errFormToo
	}
	if strings.IndexByte(raw, ';') >= 0 || !validEscapes(raw) { // some readers separate fields by ";"
		return "", errBadForm
	}
	pairs := strings.Split(raw, "&")
	if len(pairs) > maxPairs {
		return "", errTooMany
	}
	value, seen := "", false
	for _, pair := range pairs {
		if pair == "" {
			continue
		}
		name, text, _ := strings.Cut(pair, "=")
		name = unescaped(name)
		if len(name) > maxValue {
			return "", errLongName
		}
		read := readName(name)
		if read.unsure {
			return "", errAmbiguous
		}
		same, inside := read.is(f)
		if !same && !inside {
			continue
		}
		if !same || seen || name != f.name && name != f.bracketed {
			return "", errAmbiguous
		}
		seen = true
		value = unescaped(text)
		if !utf8.ValidString(value) {
			return "", errBadText
		}
		if len(value) > maxValue {
			return "", errTooLong
		}
	}
	if value == "" {
		return "", errMissing
	}
	return value, nil
}

// maybeForm reports whether some readers look for the fields of a form in the body: Rack does so without a Content-Type, or with an
// empty one.
func maybeForm(r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return false
	}
	header, err := oneHeader(r, "Content-Type")
	return err == errAmbiguous || strings.Contains(strings.ToLower(header), "application/x-www-form-urlencoded") ||
		r.Method == http.MethodPost && (header == "" || strings.IndexAny(strings.TrimSpace(header), ";,") == 0)
}

// nameRead is a name as different readers split it into steps, which are separated by dots here.
type nameRead struct {
	nested string // for Rack and qs all brackets and dots separate steps
	cut    int    // qs leaves out text that follows a closing bracket: the length of nested without it; 0 if there is no such text
	php    string // for PHP only brackets after the first step separate; dots, spaces and lone brackets before are underscores
	unsure bool   // it has a character that can be written in several ways
}

func readName(name string) *nameRead {
	n := &nameRead{}
	if i := strings.IndexByte(name, 0); i >= 0 { // where the name ends for readers written in C
		name = name[:i]
	}
	if !isASCII(name) {
		for _, r := range name {
			n.unsure = n.unsure || r >= utf8.RuneSelf && !unicode.Is(stableRunes, r)
		}
		name = strings.Map(unicode.ToLower, name)
	}
	nested := []byte{}
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c == '[' || c == ']' || c == '.':
			for len(nested) > 0 && nested[len(nested)-1] == ' ' {
				nested = nested[:len(nested)-1]
			}
			if len(nested) > 0 && nested[len(nested)-1] != '.' {
				nested = append(nested, '.')
			}
			if n.cut == 0 && c == ']' && i+1 < len(name) && strings.IndexByte("[].", name[i+1]) < 0 && len(nested) > 0 {
				n.cut = len(nested) - 1
			}
		case c > ' ' || c == ' ' && len(nested) > 0 && nested[len(nested)-1] != '.':
			nested = append(nested, lower(c))
		}
	}
	n.nested = strings.TrimRight(string(nested), ". ")
	if n.cut > len(n.nested) {
		n.cut = len(n.nested)
	}
	n.php = phpName(name)
	return n
}

func phpName(name string) string {
	name = strings.TrimLeft(name, " []")
	end := strings.IndexByte(name, '[')
	if end < 0 || strings.IndexByte(name[end:], ']') < 0 {
		end = len(name)
	}
	php := []byte(strings.TrimRight(name[:end], "]"))
	for i := 0; i < len(php); i++ {
		if php[i] == '.' || php[i] == ' ' || php[i] == '[' {
			php[i] = '_'
		}
		php[i] = lower(php[i])
	}
	rest := name[end:]
	for len(rest) > 0 && rest[0] == '[' {
		step, behind, closed := strings.Cut(rest[1:], "]")
		if !closed {
			break
		}
		step = strings.TrimLeft(step, " \t\r\n")
		if step != "" {
			php = append(php, '.')
			for i := 0; i < len(step); i++ {
				php = append(php, lower(step[i]))
			}
		}
		rest = behind
	}
	return string(php)
}

// is reports whether some readers take the name for that of the field (same), or for something inside the field (inside).
func (n *nameRead) is(f *field) (same, inside bool) {
	for _, path := range f.paths {
		for _, name := range []string{n.nested, n.nested[:n.cut]} {
			rest, ok := follow(path, name)
			if ok && rest == "" {
				return true, false
			}
			inside = inside || ok && isDigit(rest[0]) // an element of a list, which id.0 and .id[0] are for qs
		}
		rest, ok := follow(path, n.php)
		if ok && rest == "" {
			return true, false
		}
		inside = inside || ok
	}
	return false, inside
}

// follow removes the steps of a path from the beginning of a name. It reports whether the name begins with them.
func follow(path []*nameStep, name string) (rest string, ok bool) {
	if len(path) == 0 {
		return name, true
	}
	if path[0].optional {
		rest, ok = follow(path[1:], name)
		if ok && rest == "" {
			return "", true
		}
	}
	if name == "" {
		return "", false
	}
	first, rest, _ := strings.Cut(name, ".")
	if first != path[0].text {
		return "", false
	}
	return follow(path[1:], rest)
}

// validEscapes reports whether each % begins a valid escape.
func validEscapes(raw string) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] == '%' && (i+2 >= len(raw) || unhex(raw[i+1]) < 0 || unhex(raw[i+2]) < 0) {
			return false
		}
	}
	return true
}

func unhex(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case 'a' <= lower(c) && lower(c) <= 'f':
		return int(lower(c)-'a') + 10
	}
	return -1
}

// unescaped decodes the escapes of a form, and leaves invalid ones as they are.
func unescaped(text string) string {
	if strings.IndexByte(text, '%') < 0 && strings.IndexByte(text, '+') < 0 {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '%' && i+2 < len(text) && unhex(text[i+1]) >= 0 && unhex(text[i+2]) >= 0:
			c = byte(unhex(text[i+1])<<4 | unhex(text[i+2]))
			i += 2
		case c == '+':
			c = ' '
		}
		out = append(out, c)
	}
	return string(out)
}
