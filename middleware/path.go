package middleware

import (
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

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
	if err != nil || wanted && (strings.ContainsAny(text, slashes) || hasEscape(text)) || hasDots(text) {
		return "", false
	}
	value, clean := withoutParameters(text)
	return value, clean || !wanted && !strings.Contains(text, ";")
}

func hasDots(text string) bool {
	return strings.Contains(text, ".") && slices.ContainsFunc(strings.FieldsFunc(text, isSlash), func(part string) bool {
		part, _, _ = strings.Cut(part, ";")
		part = strings.TrimFunc(part, fold.IsBlank)
		return part == "." || part == ".."
	})
}

// withoutParameters returns a part of a path as Slim reads it, to which a plus sign is a space. It is not clean if some find nothing there,
// and others something.
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

// hasEscape reports whether a segment has an escape after its escapes were undone: Catalyst undoes it, too.
func hasEscape(text string) bool { return strings.Contains(text, "%") && escape.MatchString(text) }

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
	value, clean := withoutParameters(value)
	if !clean || hasEscape(value) {
		return "", errUncleanPath
	}
	return value, nil
}

// errHiddenPath reports a path within which some upstream finds another one.
const errHiddenPath = fold.Error(`path has a ";", a "\" or ".php/" in it`)

// errOverride reports a request that some upstream takes for one with another method.
const errOverride = fold.Error("request asks for another method than its own")

// asPHP writes a name as PHP reads it.
var asPHP = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// overrides are the headers by which frameworks let a client name another method.
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// Guard refuses requests that a router or matcher may take for others than an upstream does, so that they would pass by its rules: see
// CheckTarget. It answers with 400.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := CheckTarget(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// CheckTarget returns an error for a request whose target doesn't begin with "/", whose path only some servers clean (empty segments,
// dots, ";", "\", and a path behind a script of PHP), or that asks for another method, in a header or in the parameter _method of its
// query. The error shows nothing of the request.
func CheckTarget(r *http.Request) error {
	if _, err := segment(r, noSegment); err != nil {
		return err
	}
	if path := strings.ToLower(r.URL.Path); strings.ContainsAny(path, `;\`) || strings.Contains(path, ".php/") {
		return errHiddenPath
	}
	for name := range r.Header {
		if slices.ContainsFunc(overrides, func(override string) bool { return fold.SameHeader(name, override) }) {
			return errOverride
		}
	}
	for name := range r.URL.Query() {
		if strings.EqualFold(asPHP.Replace(name), "_method") {
			return errOverride
		}
	}
	return nil
}
