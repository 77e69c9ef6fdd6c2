package middleware

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

// KeyFunc derives a lock key from a request. An error that matches ErrMissingKey, or an empty key, means that the request lacks
// a part of the key. Any other error means that it isn't certain which key the request has. In both cases the request is refused with 400.
type KeyFunc func(*http.Request) (string, error)

// placeholderFunc returns the function that reads the value of a placeholder, given its name without braces.
type placeholderFunc func(name string) (KeyFunc, error)

// keyTemplate is a key template, as the comment of the package describes it.
type keyTemplate struct {
	parts     []part
	set       *fieldSet // the body fields of this template and of the rule's other templates
	readsBody bool
	each      int // the index of the part that may have several values; -1 for none
	escaped   [256]bool
	given     func(name string, f fields.Field) KeyFunc // reads a field of the body for Key; nil: the body of the request is read
}

// part is a piece of a template: literal text, or a placeholder.
type part struct {
	literal string
	name    string
	sources [][]source // the alternatives of the placeholder, each with one or more sources whose values are taken together
}

// source is one place from which a value can be read.
type source struct {
	value KeyFunc // reads the value; nil for a field of the body
	field int     // the index of the body field
	name  string  // the name without kind and label
	kind  string  // the kind that the value must have, one of fold.Kinds; empty for any
	is    func(string) bool
	label string // the text that the key has before the value
	exact bool   // the value isn't folded
}

// parseTemplate parses a template. It calls compile for each placeholder that isn't a field of the body.
func parseTemplate(text string, compile placeholderFunc) (*keyTemplate, error) {
	t := &keyTemplate{each: -1, set: new(fieldSet)}
	if err := t.parse(text, compile); err != nil {
		return nil, fmt.Errorf("key template %q: %w", text, err)
	}
	return t, nil
}

func (t *keyTemplate) parse(text string, compile placeholderFunc) error {
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

func (t *keyTemplate) addPlaceholder(name string, compile placeholderFunc) error {
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

// setEach notes that the next placeholder may have several values. It returns an error if there is such a placeholder already.
func (t *keyTemplate) setEach() error {
	if t.each >= 0 && t.each < len(t.parts) {
		return errors.New("only one placeholder may have [] or &; name a second key for the others")
	}
	t.each = len(t.parts)
	return nil
}

// source parses one alternative of a placeholder. isNew is false if the alternative was joined to the one before it.
func (t *keyTemplate) source(text string, p *part, compile placeholderFunc) (s source, isNew bool, err error) {
	if label, rest, ok := strings.Cut(text, "="); ok && label != "" && strings.Trim(label, labelLetters) == "" {
		s.label, text = label+string(labelEnd), rest
	}
	if text, s.kind, err = cutKind(text); err != nil {
		return s, false, err
	}
	if s.name, s.is = text, fold.Kinds[s.kind].Is; s.kind == "id" && inPath.MatchString(text) {
		s.is = fold.IsPathID
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
	if t.given != nil {
		s.value = t.given(text, f)
		return s, true, nil
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

// inPath matches the name of a placeholder for the path, and ofClient the name of a placeholder whose value a client chooses. Both also match the
// names that Caddy uses.
var (
	inPath   = regexp.MustCompile(`^(http\.request\.(orig_)?uri\.)?path(\.|$)`)
	ofClient = regexp.MustCompile(`^(http\.request\.)?(uri\.)?(path|query|header|cookie|body|json|form|payload)\.`)
)

// WithoutKind returns the names of the placeholders that accept any text from a client.
func (t *keyTemplate) WithoutKind() (names []string) {
	for _, p := range t.parts {
		for _, s := range slices.Concat(p.sources...) {
			if s.kind == "" && ofClient.MatchString(s.name) {
				names = append(names, s.name)
			}
		}
	}
	return names
}

const (
	labelLetters = "abcdefghijklmnopqrstuvwxyz"
	labelEnd     = '\x00' // no value may contain this byte
)

// cutKind splits {path.1:int} into the name and the required kind. A colon in a name is written \:.
func cutKind(text string) (name, kind string, err error) {
	i := strings.LastIndexByte(text, ':')
	if i > 0 && text[i-1] != '\\' {
		text, kind = text[:i], text[i+1:]
		if _, known := fold.Kinds[kind]; !known {
			return "", "", fmt.Errorf("unknown kind %q; want one of %s; write \\: for a colon in a name", kind, strings.Join(slices.Sorted(maps.Keys(fold.Kinds)), ", "))
		}
	}
	return strings.ReplaceAll(text, `\:`, ":"), kind, nil
}

// addLiteral adds the text before the placeholder next. If next isn't the first placeholder, the text must contain a byte that no escaped value
// contains. So it is certain where the value before the text ends.
func (t *keyTemplate) addLiteral(text, next string) error {
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

// exactKey returns a KeyFunc for a template from parseExact. The value of a single placeholder stays as it is; in a longer template
// the values are escaped, as in keys.
func (t *keyTemplate) exactKey() KeyFunc {
	if !t.isValue() {
		return t.Key
	}
	return func(r *http.Request) (string, error) { // operators name a sender as they know it: Bearer abc, and not Bearer%20abc
		key, err := t.Key(r)
		if err != nil {
			return "", err
		}
		return url.PathUnescape(key)
	}
}

// setExact turns folding off, for values that must not be confused with other values.
func (t *keyTemplate) setExact() {
	for _, p := range t.parts {
		for _, together := range p.sources {
			for i := range together {
				together[i].exact = true
			}
		}
	}
}

// isValue reports whether the template is a single placeholder without labels.
func (t *keyTemplate) isValue() bool {
	labeled := func(s source) bool { return s.label != "" }
	return len(t.parts) == 1 && !slices.ContainsFunc(t.parts[0].sources, func(together []source) bool { return slices.ContainsFunc(together, labeled) })
}

// Global reports whether the template has no placeholder, so that all requests share one lock.
func (t *keyTemplate) Global() bool {
	for _, p := range t.parts {
		if p.sources != nil {
			return false
		}
	}
	return true
}

// ErrMissingKey reports that a request lacks a part of its key, or that this part is empty.
var ErrMissingKey = fields.ErrMissing

// ErrAmbiguousKey reports that a request gives a part of its key more than once: the lock could be on one value while the handler reads another.
var ErrAmbiguousKey = fields.ErrAmbiguous

// keyError names the part of the key for which a request has no certain value. It contains no value from the request.
type keyError struct {
	Placeholder string // without braces
	Err         error
}

func (e *keyError) Error() string { return "key part {" + e.Placeholder + "}: " + e.Err.Error() }

// Unwrap returns ErrMissingKey, ErrAmbiguousKey, or an error for another fault of the value.
func (e *keyError) Unwrap() error { return e.Err }

// ReadsBody reports whether a key of the template may contain a field of the body.
func (t *keyTemplate) ReadsBody() bool { return t.readsBody }

// needsBody reports whether a placeholder of the template has no alternative outside of the body.
func (t *keyTemplate) needsBody() bool {
	inBody := func(s source) bool { return s.value == nil }
	return slices.ContainsFunc(t.parts, func(p part) bool {
		return p.sources != nil && !slices.ContainsFunc(p.sources, func(together []source) bool { return !slices.ContainsFunc(together, inBody) })
	})
}

// in returns the body fields of a request that the template needs.
func (t *keyTemplate) in(r *http.Request) *bodyFields {
	if t.readsBody {
		if b, ok := r.Body.(*body); ok && b.parsed != nil && b.parsed.of == t.set {
			return b.parsed
		}
	}
	return &bodyFields{request: r, fields: t.set.fields, of: t.set}
}

// placeholder is the placeholderFunc of net/http. If a request gives a value more than once, the error is ErrAmbiguousKey.
func placeholder(name string) (KeyFunc, error) {
	kind, arg, _ := strings.Cut(name, ".")
	switch {
	case name == "method":
		return func(r *http.Request) (string, error) { return r.Method, nil }, nil
	case name == "host":
		return requestedHost, nil
	case name == "path":
		return wholePath, nil
	case arg == "":
	case strings.TrimSpace(arg) != arg:
		return nil, errBlank
	case kind == "path":
		if n, err := strconv.ParseUint(arg, 10, 16); err == nil {
			return func(r *http.Request) (string, error) { return segment(r, int(n)) }, nil
		}
		if strings.Trim(arg, "-0123456789") == "" {
			return nil, errors.New("want the number of a segment of the path, from 0 to 65535")
		}
		return func(r *http.Request) (string, error) { return wildcard(r, arg) }, nil
	case kind == "header":
		canonical := textproto.CanonicalMIMEHeaderKey(arg)
		switch {
		case canonical == "Host":
			return nil, errors.New("{header.Host} is not among the headers of a request; use {host}")
		case canonical == "Transfer-Encoding" || canonical == "Trailer":
			return nil, fmt.Errorf("{header.%s} is not among the headers of a request, because the server takes it out; read another one", canonical)
		case !httpguts.ValidHeaderFieldName(arg):
			return nil, fmt.Errorf("%q is not the name of a header; want letters, digits and hyphens, as in {header.X-Order}", arg)
		}
		return func(r *http.Request) (string, error) {
			value, err := oneHeader(r, canonical)
			if encodedWord.MatchString(value) {
				err = errEncodedWord
			}
			return value, err
		}, nil
	case kind == "query" || kind == "cookie":
		if err := fields.CheckName(arg); err != nil {
			return nil, err
		}
		if kind == "query" {
			return parameter(arg)
		}
		if strings.ContainsAny(arg, ";,=") {
			return nil, fmt.Errorf("%q is not the name of a cookie, because it would end at a semicolon, comma or equals sign", arg)
		}
		name := fields.NameOf(string(fields.AppendUnescaped(nil, []byte(arg)))) // read the name as the names in requests are read
		return func(r *http.Request) (string, error) { return cookie(r, arg, name) }, nil
	}
	return nil, fmt.Errorf("%w {%s}; want {path.N}, {path.NAME}, {path}, {header.X}, {query.X}, {cookie.X}, {method} or {host}", errUnknown, name)
}

var errUnknown = errors.New("unknown placeholder")

var errBlank = errors.New("a space stands before or after the name; take it out")

func single(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrMissingKey
	case 1:
		return values[0], nil
	}
	return "", ErrAmbiguousKey
}

// parameter returns the KeyFunc for a parameter of the query. It refuses a request with a form in its body that has a different value for the
// parameter, because some readers merge the query and the form.
func parameter(name string) (KeyFunc, error) {
	f, err := fields.Parse(name)
	wanted := []fields.Field{f}
	return func(r *http.Request) (string, error) {
		if err := grammar.Target(r); err != nil {
			return "", err
		}
		for segment := range strings.SplitSeq(r.URL.EscapedPath(), "/") {
			if mayRewrite(segment, false) {
				return "", errRewrites
			}
		}
		found, err := fields.InForm([]byte(r.URL.RawQuery), wanted)
		if err != nil {
			return "", err
		}
		values, err := found[0].Result()
		aside, bad := besideQuery(r, wanted)
		if bad != nil {
			return "", bad
		}
		if err = beside(values, err, aside); err != nil {
			return "", err
		}
		return single(values)
	}, err
}

// besideQuery returns the values that a reader finds if it takes the body for a form, and merges the form with the query. Rack takes the body of a
// POST for a form if its Content-Type is missing or empty.
func besideQuery(r *http.Request, wanted []fields.Field) (*fields.Found, error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return new(fields.Found), nil
	}
	header, err := oneHeader(r, "Content-Type")
	header = strings.TrimSpace(header) // HTTP/2 keeps spaces around a value; an upstream that gets HTTP/1 from a proxy doesn't see them
	form := err == ErrAmbiguousKey || strings.Contains(strings.ToLower(header), "urlencoded")
	if !form && (r.Method != http.MethodPost || header != "" && strings.IndexAny(header, ";,") != 0) {
		return new(fields.Found), nil
	}
	if form {
		if _, err := isJSON(r); err != nil {
			return nil, err
		}
	}
	body, err := bodyBytes(r)
	if form && err == nil {
		err = grammar.Form(body)
	}
	return &fields.Collect(body, wanted)[0], err
}

// requestedHost returns the host. It refuses a request whose header Forwarded names a different host, because Rack prefers that header.
func requestedHost(r *http.Request) (string, error) {
	host := hostname(r.Host)
	for _, line := range r.Header["Forwarded"] {
		for _, found := range forwardedHost.FindAllStringSubmatch(line, -1) {
			if hostname(found[1]) != host {
				return "", ErrAmbiguousKey
			}
		}
	}
	return host, nil
}

var forwardedHost = regexp.MustCompile(`(?i)host\s*=[\s"]*([^\s",;]*)`)

// encodedWord matches an encoded word of RFC 2047, which CherryPy decodes.
var encodedWord = regexp.MustCompile(`=\?[^?]*\?[bBqQ]\?.*\?=`)

const errEncodedWord = fold.Error("header has an encoded word of RFC 2047")

func hostname(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // there is no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// oneHeader returns the value of a header. A header that some server takes for the same one, such as X_Order for X-Order, counts as a second value.
// So does a trailer with such a name, because some servers merge trailers into the headers.
func oneHeader(r *http.Request, name string) (string, error) {
	if hasOtherHeader(r, name) {
		return "", ErrAmbiguousKey
	}
	return single(r.Header[name])
}

func hasOtherHeader(r *http.Request, name string) bool {
	for other := range r.Header {
		if other != name && fold.SameHeader(other, name) {
			return true
		}
	}
	return hasHeader(r.Trailer, []string{name})
}

// cookie reads the header Cookie itself, because net/http drops malformed cookies that an upstream may read. Some readers find a cookie wherever its
// name stands before an equals sign, so cookie refuses a request with the name in a second place. own is the name as such readers see it.
func cookie(r *http.Request, name string, own fields.Name) (value string, err error) {
	if err := grammar.Cookies(r.Header["Cookie"]); err != nil {
		return "", err
	}
	if hasOtherHeader(r, "Cookie") {
		return "", ErrAmbiguousKey
	}
	err = ErrMissingKey
	for _, line := range r.Header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			pair = strings.Trim(pair, " \t")
			given, text, hasValue := strings.Cut(pair, "=")
			switch alike, bad := isCookie(given, own); {
			case bad != nil:
				return "", bad
			case alike && (given != name || !hasValue || err == nil), isWithin(pair, own):
				return "", ErrAmbiguousKey
			case alike:
				if value, err = cookieValue(text); err != nil {
					return "", err
				}
			}
		}
	}
	return value, err
}

// isCookie reports whether some reader takes the given name for the name of the wanted cookie.
func isCookie(given string, own fields.Name) (bool, error) {
	if strings.ContainsFunc(given, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return false, errBadCookie
	}
	for part := range strings.SplitSeq(given, ",") {
		if alike(part, own) {
			return true, nil
		}
	}
	return false, nil
}

// isWithin reports whether some reader finds the wanted cookie inside another one: after a space, a comma, or another character that ends a cookie
// for that reader.
func isWithin(pair string, own fields.Name) bool {
	for rest, found := pair, true; found; {
		var before string
		if before, rest, found = strings.Cut(rest, "="); !found {
			return false
		}
		before = strings.TrimRightFunc(before, fold.IsBlank) // WebOb takes "id =42" for "id=42"
		name := lastName(before, "-_.%[]")
		if len(name) < len(before) && alike(name, own) {
			return true
		}
		if shorter := lastName(name, "-_.%"); len(shorter) < len(name) && alike(shorter, own) { // for WebOb, a name can also begin after a bracket
			return true
		}
	}
	return false
}

// lastName returns the longest end of a text that has only letters, digits and these signs.
func lastName(text, signs string) string {
	i := len(text)
	for i > 0 && (fold.IsAlphanumeric(text[i-1]) || strings.IndexByte(signs, text[i-1]) >= 0) {
		i--
	}
	return text[i:]
}

const errBadCookie = fold.Error("cookie can be read in several ways")

// alike is Name.Alike for a text with escapes.
func alike(text string, own fields.Name) bool { return fields.NameOf(unescaped(text)).Alike(own) }

func unescaped(text string) string { return string(fields.AppendUnescaped(nil, []byte(text))) }

func cookieValue(text string) (string, error) {
	if err := grammar.CookieValue(text); err != nil {
		return "", err
	}
	value := strings.ReplaceAll(unescaped(text), "+", " ") // Node.js reads "+" as a plus, and others as a space, so both count as one value
	value = strings.TrimFunc(value, func(r rune) bool { return r == '"' || fold.IsBlank(r) })
	if value == "" && strings.Trim(text, "\"") != "" { // some readers see an empty value here, and others a value
		return "", errBadCookie
	}
	// Python resolves backslashes in quotes; Dancer2 splits at ";" and "&"; Express reads JSON after "j:".
	if strings.ContainsAny(value, `"\;&`) || strings.HasPrefix(value, "j:") {
		return "", errBadCookie
	}
	return value, nil
}

// Key returns the lock key of a request, for a template that makes only one key. The error is a *keyError.
func (t *keyTemplate) Key(r *http.Request) (string, error) {
	if t.each >= 0 {
		return "", &keyError{Placeholder: t.parts[t.each].name, Err: ErrAmbiguousKey}
	}
	return t.key(t.in(r))
}

// Keys returns the lock keys of a request: several if the template has a placeholder with [] or &. For JSON that can also be
// read as a form, it returns the keys of both readings, because some frameworks ignore the Content-Type. The error is a *keyError.
func (t *keyTemplate) Keys(r *http.Request) ([]string, error) {
	from := t.in(r)
	if t.readsBody || t.each >= 0 {
		return t.all(from)
	}
	key, err := t.key(from)
	if err != nil {
		return nil, err
	}
	return []string{key}, nil
}

// key returns the key of a template whose placeholders have one value each.
func (t *keyTemplate) key(from *bodyFields) (string, error) {
	key, one := make([]byte, 0, maxKey), [1]string{} // with fixed sizes, neither is allocated on the heap
	for i := range t.parts {
		p := &t.parts[i]
		if p.sources == nil {
			key = append(key, p.literal...)
			continue
		}
		values, err := p.values(from, one[:0])
		if err != nil {
			return "", err
		}
		key = t.escape(key, values[0])
	}
	return string(key), nil
}

// all returns the keys for all combinations of the values.
func (t *keyTemplate) all(from *bodyFields) ([]string, error) {
	keys := [][]byte{nil}
	for i := range t.parts {
		p := &t.parts[i]
		if p.sources == nil {
			for k := range keys {
				keys[k] = append(keys[k], p.literal...)
			}
			continue
		}
		some, err := p.values(from, nil)
		if err == nil && len(keys)*len(some) > maxKeys {
			err = &keyError{Placeholder: p.name, Err: errTooManyKeys}
		}
		if err != nil {
			return nil, err
		}
		next := make([][]byte, 0, len(keys)*len(some))
		for _, key := range keys {
			for _, value := range some {
				next = append(next, t.escape(slices.Clone(key), value))
			}
		}
		keys = next
	}
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = string(key)
	}
	return texts, nil
}

// values returns the folded values of the first alternative that the request has. It puts a single value into room, to save an allocation.
func (p *part) values(from *bodyFields, room []string) (values []string, err error) {
	var elsewhere []string
	for _, together := range p.sources {
		values, err = p.together(from, together, room)
		if err == nil {
			break
		}
		if other := (*elsewhereError)(nil); errors.As(err, &other) {
			elsewhere = append(elsewhere, other.values...)
		}
		if !errors.Is(err, ErrMissingKey) {
			break
		}
	}
	if elsewhere != nil && (errors.Is(err, ErrMissingKey) || err == nil && !hasAll(unlabeled(values), elsewhere)) {
		err = ErrAmbiguousKey // otherwise on_missing_key could let the request pass without a lock
	}
	if from.asForm != nil {
		values, err = from.withForm(p, values, err)
	}
	if err != nil {
		return nil, &keyError{Placeholder: p.name, Err: err}
	}
	return values, nil
}

func unlabeled(values []string) (plain []string) {
	for _, value := range values {
		plain = append(plain, value[strings.IndexByte(value, labelEnd)+1:])
	}
	return plain
}

// together returns the values of all these sources that the request has. If there are several sources, it skips objects and arrays, and elements of a
// list that lack the field.
func (p *part) together(from *bodyFields, sources []source, room []string) ([]string, error) {
	if len(sources) == 1 {
		return p.valuesOf(from, &sources[0], room)
	}
	var all []string
	for i := range sources {
		values, err := p.valuesOf(from, &sources[i], nil)
		var elsewhere *elsewhereError
		switch {
		case fields.Some(err):
			all = append(all, values...)
		case !errors.Is(err, ErrMissingKey) || errors.As(err, &elsewhere) && (elsewhere.inQuery || !from.json):
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, ErrMissingKey
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// valuesOf returns the folded values of one source. If fields.Some accepts the error, it returns the values that were found as well.
func (p *part) valuesOf(from *bodyFields, s *source, room []string) (values []string, err error) {
	if s.value == nil {
		values, err = from.values(*s)
		if err == errOtherFormat && !from.readsOther(p) {
			if err = errBodyIsForm; from.json {
				err = errBodyIsJSON
			}
		}
		values = append(room, values...)
	} else {
		var value string
		value, err = s.value(from.request)
		values = append(room, value)
	}
	if !fields.Some(err) {
		return nil, err
	}
	folded, failed := s.fold(values)
	switch {
	case failed != nil:
		return nil, failed
	case err != nil || len(folded) == len(values):
		return folded, err
	case len(folded) == 0:
		return nil, ErrMissingKey
	}
	return folded, fields.ErrPartly
}

// fold folds the values in place, unless they must stay exact, and drops values that become empty. It returns an error if a value isn't of the
// placeholder's kind.
func (s *source) fold(values []string) (folded []string, err error) {
	folded = values[:0]
	for _, value := range values {
		if s.is != nil && value != "" && !s.is(value) {
			return nil, fold.Error(fold.Kinds[s.kind].Not)
		}
		if !s.exact {
			value, err = fold.Value(value)
		} else if strings.ContainsRune(value, labelEnd) {
			err = fold.ErrBadText
		}
		if err != nil {
			return nil, err
		}
		if value != "" {
			folded = append(folded, s.label+value)
		}
	}
	return folded, nil
}

// escape appends a value to a key: escaped, and with "=" after the value's label, if it has one.
func (t *keyTemplate) escape(key []byte, value string) []byte {
	const hex = "0123456789ABCDEF"
	for _, c := range []byte(value) {
		if c == labelEnd {
			key = append(key, '=')
		} else if t.escaped[c] {
			key = append(key, '%', hex[c>>4], hex[c&15])
		} else {
			key = append(key, c)
		}
	}
	return key
}

const (
	maxKeys = fields.MaxValues
	maxKey  = 200 // bytes; a longer key is hashed
)

var errTooManyKeys = fields.ErrTooMany

// keysFunc derives the lock keys of a request, which holds all of them together. from has the index of each key's template; it is nil if there is
// only one. The caller may change the slices. Errors are as for a KeyFunc.
type keysFunc func(*http.Request) (keys []string, from []int, err error)

// onlyKey makes a keysFunc of a KeyFunc.
func onlyKey(key KeyFunc) keysFunc {
	return func(r *http.Request) ([]string, []int, error) {
		k, err := key(r)
		if err != nil {
			return nil, nil, err
		}
		return []string{k}, nil, nil
	}
}

// templates are the key templates of a rule: a request has the keys of all of them.
type templates []*keyTemplate

func parseTemplates(texts []string, compile placeholderFunc) (templates, error) {
	if len(texts) == 0 {
		return nil, errors.New("no key template")
	}
	if len(texts) > maxKeys {
		return nil, fmt.Errorf("key templates: at most %d, got %d", maxKeys, len(texts))
	}
	all := make(templates, len(texts))
	for i, text := range texts {
		var err error
		if all[i], err = parseTemplate(text, compile); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Global reports whether one of the templates has no placeholder, so that all requests share the lock on its key.
func (t templates) Global() bool { return slices.ContainsFunc(t, (*keyTemplate).Global) }

// Keys derives the lock keys of a request, at least one from each template. The error is a *keyError.
func (t templates) Keys(r *http.Request) (keys []string, from []int, err error) {
	if len(t) == 1 {
		keys, err = t[0].Keys(r)
		return keys, nil, err
	}
	for i, template := range t {
		some, err := template.Keys(r)
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, some...)
		from = append(from, slices.Repeat([]int{i}, len(some))...)
	}
	return keys, from, nil
}
