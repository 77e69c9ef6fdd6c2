package middleware

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

// errUncleanPath is the error for a path that routers and upstreams read differently.
const errUncleanPath = fold.Error("path has an empty, \".\", \"..\" or \"+\" segment, an escaped slash, or what is escaped twice")

// errRewrites is the error for a path that a server's rewrite rules may turn into a query with different values.
const errRewrites = fold.Error("path has a \"&\", \"#\" or \"?\" in a segment of the key, or a \"&\" before a \"=\"")

const (
	allSegments = math.MaxInt
	noSegment   = -1
	aWildcard   = -2 // for a key with the value of a wildcard, whose segment isn't known
)

// segment returns segment n of the path, unescaped and without parameters after a semicolon. It refuses a path that other readers split differently.
func segment(r *http.Request, n int) (value string, err error) {
	if err := grammar.Target(r); err != nil {
		return "", err
	}
	var all []string
	rest := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	for i, more := 0, rest != ""; more; i++ {
		var text string
		text, rest, more = strings.Cut(rest, "/")
		if n != noSegment && mayRewrite(text, i == n || n == allSegments) {
			return "", errRewrites
		}
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

// cleanSegment unescapes a segment, and drops the parameters after a semicolon, as servers in Java do. Some readers, such as nginx, unescape the
// whole path first, and only then follow ".." and split the path at slashes. Others also split it at backslashes. So cleanSegment refuses "." and
// "..". If wanted is true, because the segment is the one for the key or stands before it, cleanSegment also refuses slashes, backslashes and double
// escapes.
func cleanSegment(escaped string, wanted bool) (text string, clean bool) {
	text, err := url.PathUnescape(escaped)
	if err != nil || wanted && (strings.ContainsAny(text, slashes) || hasEscape(text)) || hasDots(text) {
		return "", false
	}
	value, clean := withoutParameters(text)
	return value, clean || !wanted && !strings.Contains(text, ";")
}

// mayRewrite reports whether a server's rewrite rules may turn a segment into more than one value. Rules of Apache or nginx undo the escapes of a
// segment, and then put it into a query, for example after "id=". In a segment of the key, a "&", "#" or "?" could end the value. Any other segment
// does harm only if it adds a second "id=", for which it needs a "&" before a "=".
func mayRewrite(escaped string, ofKey bool) bool {
	if !strings.ContainsAny(escaped, "&%") { // no other character matters in a path
		return false
	}
	text := unescaped(escaped)
	_, behind, found := strings.Cut(text, "&")
	return ofKey && (found || strings.ContainsAny(text, "#?")) || found && strings.Contains(behind, "=")
}

func hasDots(text string) bool {
	return strings.Contains(text, ".") && slices.ContainsFunc(strings.FieldsFunc(text, isSlash), func(part string) bool {
		part, _, _ = strings.Cut(part, ";")
		part = strings.TrimFunc(part, fold.IsBlank)
		return part == "." || part == ".."
	})
}

// withoutParameters returns a part of a path without the parameters after a semicolon, and with spaces in place of plus signs, as Slim reads them.
// clean is false if some readers find an empty value there, and others a value.
func withoutParameters(text string) (value string, clean bool) {
	before, _, parameters := strings.Cut(text, ";")
	value = strings.ReplaceAll(before, "+", " ")
	if value == text && !parameters {
		return value, true
	}
	folded, _ := fold.Value(value)
	return value, folded != ""
}

const slashes = `/\`

func isSlash(r rune) bool { return strings.ContainsRune(slashes, r) }

var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// hasEscape reports whether a segment still has an escape after its escapes were undone. Catalyst would undo that escape as well.
func hasEscape(text string) bool { return strings.Contains(text, "%") && escape.MatchString(text) }

func wholePath(r *http.Request) (string, error) {
	value, err := segment(r, allSegments)
	return "/" + value, err
}

// The errors for a placeholder {path.NAME} in a middleware that runs before the router, and for one that the route doesn't have.
var (
	errNoWildcard    = fmt.Errorf("%w; no router has named it: put the middleware inside the router, around the handler", ErrMissingKey)
	errOtherWildcard = fmt.Errorf("%w; the pattern of the route has no wildcard of this name", ErrMissingKey)
)

// hasWildcard reports whether a pattern has {id} or {id...}, as in net/http, or {id:[0-9]+}, as in chi.
func hasWildcard(pattern, name string) bool {
	return slices.ContainsFunc([]string{"}", "...}", ":"}, func(end string) bool { return strings.Contains(pattern, "{"+name+end) })
}

// wildcard returns the part of the path that the router has matched with this wildcard.
func wildcard(r *http.Request, name string) (string, error) {
	value := r.PathValue(name)
	switch {
	case value == "" && r.Pattern == "":
		return "", errNoWildcard
	case value == "" && !hasWildcard(r.Pattern, name):
		return "", errOtherWildcard
	case value == "":
		return "", nil
	}
	most := aWildcard
	if strings.Contains(value, "/") { // only {name...} matches several segments, in which the client must not have escaped a slash
		most = allSegments
	}
	if _, err := segment(r, most); err != nil {
		return "", err
	}
	if strings.ContainsAny(value, "&#?") {
		return "", errRewrites
	}
	value, clean := withoutParameters(value)
	if !clean || hasEscape(value) {
		return "", errUncleanPath
	}
	return value, nil
}
