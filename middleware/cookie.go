package middleware

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fields"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/grammar"
)

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
		for _, inNames := range []string{"-_.%[]", "-_.%"} { // WebOb begins a name behind brackets, too
			name := before[strings.LastIndexFunc(before, func(r rune) bool {
				return r >= utf8.RuneSelf || !fold.IsAlphanumeric(byte(r)) && !strings.ContainsRune(inNames, r)
			})+1:]
			if len(name) < len(before) && alike(name, own) {
				return true
			}
		}
	}
	return false
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
