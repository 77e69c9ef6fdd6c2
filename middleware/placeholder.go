package middleware

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"strconv"
	"strings"

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

// errUncleanPath reports a path that routers and upstreams read differently.
const errUncleanPath = fold.Error("path has an empty, \".\", \"..\" or \"+\" segment, an escaped slash, or what is escaped twice")

const (
	allSegments = math.MaxInt
	noSegment   = -1
)

// segment splits the path as the client sent it, and refuses what other readers split in another way.
func segment(r *http.Request, n int) (value string, err error) {
	if err := grammar.Target(r); err != nil {
		return "", err
	}
	var all []string
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	for i, more := 0, rest != ""; more; i++ {
		var text string
		text, rest, more = strings.Cut(rest, "/")
		text, clean := cleanSegment(text, i <= n)
		switch {
		case !clean || text == "" && more:
			return "", errUncleanPath
		case i == n:
			value = text
		case n == allSegments && (i == 0 || text != ""):
			all = append(all, text)
		}
	}
	return value + strings.Join(all, "/"), nil
}

// cleanSegment unescapes a segment, without the parameters behind a semicolon, which Java strips. Some readers, such as nginx,
// unescape the whole path before they split it at slashes (others also at backslashes) and follow the dots: no segment may lead
// back to a wanted one, and that one has no slashes.
func cleanSegment(escaped string, wanted bool) (text string, clean bool) {
	text, err := url.PathUnescape(escaped)
	if err != nil || wanted && (strings.ContainsAny(text, slashes) || escapedTwice.MatchString(text)) {
		return "", false
	}
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(slashes, r) }) {
		part, _, _ = strings.Cut(part, ";")
		if part = strings.TrimFunc(part, fold.IsBlank); part == "." || part == ".." {
			return "", false
		}
	}
	text, _, parameters := strings.Cut(text, ";")
	text, certain := withSpaces(text)
	return text, (certain || !wanted) && (!parameters || !isNothing(text))
}

// withSpaces writes a part of a path as Slim reads it, to which a plus sign is a space. It is not certain if others find something there,
// and Slim nothing.
func withSpaces(text string) (spaced string, certain bool) {
	spaced = strings.ReplaceAll(text, "+", " ")
	return spaced, spaced == text || !isNothing(spaced)
}

func isNothing(text string) bool {
	value, _ := fold.Value(text)
	return value == ""
}

const slashes = `/\`

// escapedTwice finds an escape in a segment whose escapes were undone: Catalyst undoes it, too.
var escapedTwice = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

func wholePath(r *http.Request) (string, error) {
	value, err := segment(r, allSegments)
	return "/" + value, err
}

// wildcard returns a part of the path that a router has found.
func wildcard(r *http.Request, name string) (string, error) {
	value := r.PathValue(name)
	if value == "" {
		return "", nil
	}
	most := noSegment
	if strings.Contains(value, "/") { // of {name...}: the client must not have escaped a slash in it
		most = allSegments
	}
	if _, err := segment(r, most); err != nil {
		return "", err
	}
	value, _, cut := strings.Cut(value, ";")
	value, certain := withSpaces(value)
	if !certain || cut && isNothing(value) || escapedTwice.MatchString(value) {
		return "", errUncleanPath
	}
	return value, nil
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
