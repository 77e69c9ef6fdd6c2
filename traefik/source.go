package traefik

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

// parseSource parses one alternative of a placeholder, such as path.1:int. A colon in a name is written \:.
func parseSource(text string) (*source, error) {
	s := &source{}
	if i := strings.LastIndexByte(text, ':'); i > 0 && text[i-1] != '\\' {
		s.kind = text[i+1:]
		text = text[:i]
		if s.kind != "int" && s.kind != "int64" && s.kind != "uuid" && s.kind != "id" {
			return nil, fmt.Errorf("unknown kind %q; want id, int, int64 or uuid; write \\: for a colon in a name", s.kind)
		}
	}
	name := strings.ReplaceAll(text, `\:`, ":")
	family, arg, _ := strings.Cut(name, ".")
	s.family = family
	s.arg = arg
	switch {
	case name == "method" || name == "host" || name == "path":
		return s, nil
	case family == "body" || family == "json" || family == "form" || family == "payload":
		return nil, errors.New("the plugin for Traefik reads no bodies; to lock by a body, put Caddy with its module behind Traefik")
	case arg == "":
	case strings.TrimSpace(arg) != arg:
		return nil, errors.New("a space stands before or after the name; take it out")
	case family == "path":
		n, err := strconv.ParseUint(arg, 10, 16)
		if err != nil {
			return nil, errors.New("segments of the path have no names in Traefik; use {path.N}, counted from 0")
		}
		s.family = "segment"
		s.n = int(n)
		return s, nil
	case family == "header":
		s.arg = textproto.CanonicalMIMEHeaderKey(arg)
		switch {
		case s.arg == "Host":
			return nil, errors.New("{header.Host} is not among the headers of a request; use {host}")
		case s.arg == "Transfer-Encoding" || s.arg == "Trailer":
			return nil, fmt.Errorf("{header.%s} is not among the headers of a request, because the server takes it out; read another one", s.arg)
		case !isHeaderName(arg):
			return nil, fmt.Errorf("%q is not the name of a header; want letters, digits and hyphens, as in {header.X-Order}", arg)
		}
		return s, nil
	case family == "query":
		f, err := parseField(arg)
		s.field = f
		return s, err
	case family == "cookie":
		if strings.ContainsAny(arg, ";,=") {
			return nil, fmt.Errorf("%q is not the name of a cookie, because it would end at a semicolon, comma or equals sign", arg)
		}
		read := readName(unescaped(arg)) // as the names that requests have are read
		s.given = arg
		s.arg = read.php
		if read.unsure {
			return nil, errors.New("the name has a character that can be written in several ways")
		}
		return s, nil
	}
	return nil, fmt.Errorf("unknown placeholder {%s}; want {path.N}, {path}, {header.X}, {query.X}, {cookie.X}, {method} or {host}", name)
}

// value returns the value in a request.
func (s *source) value(r *http.Request) (string, error) {
	switch s.family {
	case "method":
		return r.Method, nil
	case "host":
		return hostname(r.Host), nil
	case "path":
		value, err := segment(r, allSegments)
		return "/" + value, err
	case "segment":
		return segment(r, s.n)
	case "header":
		return oneHeader(r, s.arg)
	case "query":
		return s.field.inQuery(r)
	}
	return cookie(r, s.given, s.arg)
}

func single(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", errMissing
	case 1:
		return values[0], nil
	}
	return "", errAmbiguous
}

// oneHeader returns the only value of a header. A name that some servers take for the same counts as a second value, even among the
// trailers, which some servers add to the headers.
func oneHeader(r *http.Request, name string) (string, error) {
	for other := range r.Header {
		if other != name && len(other) == len(name) && sameHeader(other, name) {
			return "", errAmbiguous
		}
	}
	for other := range r.Trailer {
		if sameHeader(other, name) {
			return "", errAmbiguous
		}
	}
	return single(r.Header[name])
}

// sameHeader reports whether some servers take two names of headers for the same: CGI and its successors do not distinguish "-" from
// "_" and others.
func sameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		if foldHeader(a[i]) != foldHeader(b[i]) {
			return false
		}
	}
	return true
}

func foldHeader(c byte) byte {
	if !isAlphanumeric(c) {
		return '-'
	}
	return lower(c)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// errUncleanPath refuses paths that routers and upstreams read in several ways.
var errUncleanPath = errors.New("path has an empty, \".\" or \"..\" segment, or an escaped slash")

const allSegments = 1 << 30

// segment returns segment n of the path as the client sent it, and refuses what other readers split in another way.
func segment(r *http.Request, n int) (string, error) {
	if strings.Contains(r.RequestURI, "#") { // some readers end the path there
		return "", errUncleanPath
	}
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	value := []string{}
	more := rest != ""
	for i := 0; more; i++ {
		text := ""
		text, rest, more = strings.Cut(rest, "/")
		text, clean := cleanSegment(text, i <= n)
		switch {
		case !clean || text == "" && more:
			return "", errUncleanPath
		case i == n || n == allSegments && (i == 0 || text != ""):
			value = append(value, text)
		}
	}
	return strings.Join(value, "/"), nil
}

// cleanSegment decodes a segment, without the parameters after a semicolon, which Java leaves out. Some readers decode the whole path
// before they split it at slashes and backslashes and follow the dots: no segment may lead back to a wanted one, and that one has no
// slashes.
func cleanSegment(escaped string, wanted bool) (text string, clean bool) {
	text, err := url.PathUnescape(escaped)
	if err != nil || wanted && strings.ContainsAny(text, `/\`) {
		return "", false
	}
	if strings.IndexByte(text, '.') >= 0 {
		for _, part := range strings.Split(strings.ReplaceAll(text, `\`, "/"), "/") {
			part, _, _ = strings.Cut(part, ";")
			part = strings.TrimFunc(part, isBlank)
			if part == "." || part == ".." {
				return "", false
			}
		}
	}
	text, _, parameters := strings.Cut(text, ";")
	return text, !parameters || !foldsToNothing(text)
}

func hostname(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

var errBadCookie = errors.New("cookie can be read in several ways")

// cookie parses the header itself: net/http leaves out cookies that it finds malformed, but an upstream may read them. Some readers
// also separate cookies by commas, decode escapes, or leave out quotes; folded is the name as PHP reads it.
func cookie(r *http.Request, name, folded string) (string, error) {
	value, err := "", errMissing
	for _, line := range r.Header["Cookie"] {
		for _, pair := range strings.Split(line, ";") {
			for i, part := range strings.Split(pair, ",") {
				given, _, hasValue := strings.Cut(part, "=")
				given = strings.TrimSpace(given)
				if len(given) > maxValue {
					return "", errBadCookie
				}
				other := readName(unescaped(given))
				switch {
				case other.unsure:
					return "", errAmbiguous
				case other.php != folded && other.nested != folded && !strings.HasPrefix(other.php, folded+"."):
				case i > 0 || given != name || !hasValue || err == nil:
					return "", errAmbiguous
				default:
					_, text, _ := strings.Cut(pair, "=")
					value, err = cookieValue(text)
					if err != nil {
						return "", err
					}
				}
			}
		}
	}
	return value, err
}

func cookieValue(text string) (string, error) {
	if !validEscapes(text) {
		return "", errBadCookie
	}
	value := strings.TrimFunc(unescaped(text), func(r rune) bool { return r == '"' || isBlank(r) })
	if value == "" && strings.Trim(text, " \t\"") != "" { // empty to some readers only
		return "", errBadCookie
	}
	if strings.ContainsAny(value, `"\\`) || strings.HasPrefix(value, "j:") { // Python decodes such escapes, Express such JSON
		return "", errBadCookie
	}
	return value, nil
}
