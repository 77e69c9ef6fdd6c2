package middleware

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

// Placeholder is the PlaceholderFunc of net/http. It knows these placeholders:
//
//	{path.N}     segment N of the path, from 0: {path.1} of /orders/42 is 42. A path that is not clean,
//	             such as /orders//42 or /./orders/42, has no key
//	{path.NAME}  the wildcard NAME of the pattern that matched (http.ServeMux, chi, …)
//	{path}       the whole path
//	{header.X}   the header X
//	{query.X}    the parameter X of the query
//	{cookie.X}   the cookie X
//	{method}     the method
//	{host}       the requested host, without its port
//
// A value that a request gives more than once is ErrAmbiguousKey. A template folds the values: everything that upstreams may
// take for the same value makes one key; docs/keys.md has the table.
func Placeholder(name string) (KeyFunc, error) {
	kind, arg, _ := strings.Cut(name, ".")
	switch {
	case name == "method":
		return func(r *http.Request) (string, error) { return r.Method, nil }, nil
	case name == "host":
		return func(r *http.Request) (string, error) { return hostname(r.Host), nil }, nil
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
		return func(r *http.Request) (string, error) { return oneHeader(r, canonical) }, nil
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
		name := fields.NameOf(string(fields.AppendUnescaped(nil, []byte(arg)))) // as the names that requests have are read
		return func(r *http.Request) (string, error) { return cookie(r, arg, name) }, nil
	}
	return nil, fmt.Errorf("unknown placeholder {%s}; want {path.N}, {path.NAME}, {path}, {header.X}, {query.X}, {cookie.X}, {method} or {host}", name)
}

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

// parameter returns the KeyFunc of a parameter of the query. A form in the body must not have another value for it: some
// readers merge the two.
func parameter(name string) (KeyFunc, error) {
	f, err := fields.Parse(name)
	wanted := []fields.Field{f}
	return func(r *http.Request) (string, error) {
		if err := grammar.Target(r); err != nil {
			return "", err
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

// besideQuery returns what a reader that merges the query with the body finds there, if some reader takes the body for a form. Rack does
// so if a POST has no Content-Type, or an empty one.
func besideQuery(r *http.Request, wanted []fields.Field) (*fields.Found, error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return new(fields.Found), nil
	}
	header, err := oneHeader(r, "Content-Type")
	form := err == ErrAmbiguousKey || strings.Contains(strings.ToLower(header), "urlencoded")
	if !form && (r.Method != http.MethodPost || header != "" && strings.IndexAny(strings.TrimSpace(header), ";,") != 0) {
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

func hostname(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// oneHeader returns the value of a header. A name that some server takes for the same, such as X_Order for X-Order, counts as
// a second value, even among the trailers: some servers merge those into the headers.
func oneHeader(r *http.Request, name string) (string, error) {
	values := r.Header[name]
	for other := range r.Header {
		if other != name && fold.SameHeader(other, name) {
			return "", ErrAmbiguousKey
		}
	}
	for other := range r.Trailer {
		if fold.SameHeader(other, name) {
			return "", ErrAmbiguousKey
		}
	}
	return single(values)
}

// cookie reads the header itself: net/http drops cookies that it finds malformed, but an upstream may read them. Some readers find
// the beginning of a cookie wherever its name stands before an equals sign: it must do so nowhere else. own is the name as they read it.
func cookie(r *http.Request, name string, own fields.Name) (value string, err error) {
	if err := grammar.Cookies(r.Header["Cookie"]); err != nil {
		return "", err
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

// isCookie reports whether some reader takes the name of a cookie for the one that is wanted.
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

// isWithin reports whether some reader finds the cookie within another one, behind a space, a comma, or whatever it takes for the end of
// that.
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
		if shorter := lastName(name, "-_.%"); len(shorter) < len(name) && alike(shorter, own) { // WebOb begins a name behind brackets, too
			return true
		}
	}
	return false
}

// lastName returns the letters, digits and these signs at the end of a text.
func lastName(text, signs string) string {
	i := len(text)
	for i > 0 && (fold.IsAlphanumeric(text[i-1]) || strings.IndexByte(signs, text[i-1]) >= 0) {
		i--
	}
	return text[i:]
}

const errBadCookie = fold.Error("cookie can be read in several ways")

// alike is Name.Alike for a name with escapes.
func alike(text string, own fields.Name) bool { return fields.NameOf(unescaped(text)).Alike(own) }

func unescaped(text string) string { return string(fields.AppendUnescaped(nil, []byte(text))) }

func cookieValue(text string) (string, error) {
	if err := grammar.CookieValue(text); err != nil {
		return "", err
	}
	value := strings.ReplaceAll(unescaped(text), "+", " ") // node leaves a "+" as it is
	value = strings.TrimFunc(value, func(r rune) bool { return r == '"' || fold.IsBlank(r) })
	if value == "" && strings.Trim(text, "\"") != "" { // some readers see nothing here, others something
		return "", errBadCookie
	}
	// Python undoes the escapes of quotes; Dancer2 splits at the other two; after j: Express reads JSON.
	if strings.ContainsAny(value, `"\;&`) || strings.HasPrefix(value, "j:") {
		return "", errBadCookie
	}
	return value, nil
}
