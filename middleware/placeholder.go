package middleware

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
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
	case kind == "query":
		return parameter(arg)
	case kind == "cookie":
		if strings.ContainsAny(arg, ";,=") {
			return nil, fmt.Errorf("%q is not the name of a cookie, because it would end at a semicolon, comma or equals sign", arg)
		}
		var name fields.Name
		name.Set(fields.AppendUnescaped(nil, []byte(arg))) // as the names that requests have are read
		return func(r *http.Request) (string, error) { return cookie(r, arg, string(name.PHP)) }, nil
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
		if strings.Contains(r.URL.RawQuery, "#") || strings.Contains(r.RequestURI, "#") { // some readers end it there
			return "", fields.ErrBadForm
		}
		var values []string
		var err error = ErrMissingKey
		if r.URL.RawQuery != "" {
			found, bad := fields.InQuery([]byte(r.URL.RawQuery), wanted)
			if bad != nil {
				return "", bad
			}
			values, err = found[0].Result()
		}
		if maybeForm(r) {
			body, bad := bodyBytes(r)
			if bad != nil {
				return "", bad
			}
			err = beside(values, err, &fields.Collect(body, wanted)[0])
		}
		if err != nil {
			return "", err
		}
		return single(values)
	}, err
}

// maybeForm reports whether some reader takes the body for a form. Rack does so if no Content-Type is given, or an empty one.
func maybeForm(r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return false
	}
	header, err := oneHeader(r, "Content-Type")
	return err == ErrAmbiguousKey || strings.Contains(strings.ToLower(header), formType) ||
		r.Method == http.MethodPost && (header == "" || strings.IndexAny(strings.TrimSpace(header), ";,") == 0)
}

// cookie reads the header itself: net/http drops cookies that it finds malformed, but an upstream may read them. Some readers
// also split cookies at commas, undo escapes, or strip quotes. folded is the name as PHP reads it.
func cookie(r *http.Request, name, folded string) (value string, err error) {
	err = ErrMissingKey
	var other fields.Name
	for _, line := range r.Header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			for i, part := range strings.Split(pair, ",") {
				given, _, hasValue := strings.Cut(part, "=")
				given = strings.TrimSpace(given)
				if len(given) > maxCookieName {
					return "", errBadCookie
				}
				other.Set(fields.AppendUnescaped(nil, []byte(given)))
				switch {
				case string(other.PHP) != folded && string(other.Nested) != folded && !bytes.HasPrefix(other.PHP, []byte(folded+".")):
				case i > 0, given != name, !hasValue, err == nil:
					return "", ErrAmbiguousKey
				default:
					_, text, _ := strings.Cut(pair, "=")
					if value, err = cookieValue(text); err != nil {
						return "", err
					}
				}
			}
		}
	}
	return value, err
}

// maxCookieName is what a name may have in a form, too. Browsers send no longer cookies.
const maxCookieName = 4 << 10

const errBadCookie = fold.Error("cookie can be read in several ways")

func cookieValue(text string) (string, error) {
	if !fields.ValidEscapes([]byte(text)) {
		return "", errBadCookie
	}
	value := strings.TrimFunc(string(fields.AppendUnescaped(nil, []byte(text))), func(r rune) bool { return r == '"' || fold.IsBlank(r) })
	if value == "" && strings.Trim(text, " \t\"") != "" { // some readers see nothing here, others something
		return "", errBadCookie
	}
	if strings.ContainsAny(value, `"\\`) || strings.HasPrefix(value, "j:") { // Python undoes such escapes; after j: Express reads JSON
		return "", errBadCookie
	}
	return value, nil
}

// errUncleanPath reports a path that routers and upstreams read differently.
const errUncleanPath = fold.Error("path has an empty, \".\" or \"..\" segment, or an escaped slash")

const (
	allSegments = math.MaxInt
	noSegment   = -1
)

// segment splits the path as the client sent it, and refuses what other readers split in another way.
func segment(r *http.Request, n int) (value string, err error) {
	if strings.Contains(r.RequestURI, "#") { // unescaped: some readers end the path there
		return "", errUncleanPath
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
	if err != nil || wanted && strings.ContainsAny(text, slashes) {
		return "", false
	}
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(slashes, r) }) {
		part, _, _ = strings.Cut(part, ";")
		if part = strings.TrimFunc(part, fold.IsBlank); part == "." || part == ".." {
			return "", false
		}
	}
	text, _, parameters := strings.Cut(text, ";")
	return text, !parameters || !fold.IsNothing(text)
}

const slashes = `/\`

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
	if cut && fold.IsNothing(value) {
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
