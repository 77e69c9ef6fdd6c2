package middleware

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
)

// Placeholder gives the meaning of a placeholder in a request of net/http:
//
//	{path.N}     the Nth segment of the path, from 0: {path.1} of /orders/42 is 42; of a path that
//	             is not clean, such as /orders//42 or /./orders/42, no key is made
//	{path.NAME}  the wildcard NAME of the pattern that matched (http.ServeMux, chi, …)
//	{header.X}   the header X
//	{query.X}    the parameter X of the query
//	{cookie.X}   the cookie X
//	{method}     the method
//	{host}       the host asked for, in lower case, without port
//
// A value that a request gives more than once is ErrAmbiguousKey.
func Placeholder(name string) (KeyFunc, error) {
	kind, arg, _ := strings.Cut(name, ".")
	switch {
	case name == "method":
		return func(r *http.Request) (string, error) { return r.Method, nil }, nil
	case name == "host":
		return func(r *http.Request) (string, error) { return hostname(r.Host), nil }, nil
	case arg == "":
	case kind == "path":
		if n, err := strconv.ParseUint(arg, 10, 16); err == nil {
			return func(r *http.Request) (string, error) { return segment(r, int(n)) }, nil
		}
		return func(r *http.Request) (string, error) { return r.PathValue(arg), nil }, nil
	case kind == "header":
		canonical := textproto.CanonicalMIMEHeaderKey(arg)
		if canonical == "Host" {
			return nil, errors.New("{header.Host} is not among the headers of a request; use {host}")
		}
		return func(r *http.Request) (string, error) { return single(r.Header[canonical]) }, nil
	case kind == "query":
		return func(r *http.Request) (string, error) {
			query, err := url.ParseQuery(r.URL.RawQuery)
			if err != nil {
				return "", errors.New("query can't be read")
			}
			return single(query[arg])
		}, nil
	case kind == "cookie":
		return func(r *http.Request) (string, error) { return cookie(r, arg) }, nil
	}
	return nil, fmt.Errorf("unknown placeholder {%s}; there are {path.N}, {path.NAME}, {header.X}, {query.X}, {cookie.X}, {method} and {host}", name)
}

func single(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", ErrMissingKey
	case 1:
		return values[0], nil
	}
	return "", ErrAmbiguousKey
}

// cookie counts in the header itself: net/http leaves out cookies that it finds malformed, but an
// upstream may read them.
func cookie(r *http.Request, name string) (string, error) {
	given := 0
	for _, line := range r.Header["Cookie"] {
		for pair := range strings.SplitSeq(line, ";") {
			if n, _, _ := strings.Cut(pair, "="); strings.TrimSpace(n) == name {
				given++
			}
		}
	}
	cookies := r.CookiesNamed(name)
	switch {
	case given > 1:
		return "", ErrAmbiguousKey
	case len(cookies) != given:
		return "", errors.New("cookie can't be read")
	case given == 0:
		return "", ErrMissingKey
	}
	return cookies[0].Value, nil
}

// errUncleanPath refuses paths that routers and upstreams read in several ways.
var errUncleanPath = errors.New("path has an empty, \".\" or \"..\" segment")

// segment splits the path as the client sent it, so that an escaped slash stays in its segment.
func segment(r *http.Request, n int) (value string, err error) {
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	for i, more := 0, rest != ""; more; i++ {
		var text string
		text, rest, more = strings.Cut(rest, "/")
		text, err := url.PathUnescape(text)
		if err != nil || text == "." || text == ".." || text == "" && more {
			return "", errUncleanPath
		}
		if i == n {
			value = text
		}
	}
	return value, nil
}

func hostname(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.ToLower(host)
}
