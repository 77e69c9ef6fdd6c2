// Package grammar is the one way in which a request may be written where a key, an ID or what else decides on a lock is read from it.
//
// Upstreams read one request in different ways, and an enumeration of these is never complete. So this says what every reader takes
// for the same, which is what clients write that mean no harm; everything else is refused, with an error that names the rule.
package grammar

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// The rules, as the errors of what breaks them.
const (
	ErrTarget    fold.Error = `target of the request doesn't begin with "/", has a "#", or is longer than 64 KiB`
	ErrParameter fold.Error = "Content-Type has a parameter other than charset=utf-8"
	ErrForm      fold.Error = "form or query has other characters than printable ones of ASCII, a \";\", or a \"%\" that begins no escape"
	ErrFormName  fold.Error = "form or query has a name that is empty, has other characters than letters, digits, spaces and -_.:~@$*/,()'[], or begins with one behind the $"
	ErrCookies   fold.Error = "cookies are longer than 64 KiB, or have more than 1000 semicolons, commas and equals signs"
	ErrCookie    fold.Error = "cookie has a value with other characters than RFC 6265 allows, or with \"[\", \"]\", \"&\", or a \"%\" that begins no escape"
	ErrJSON      fold.Error = "body is not valid JSON, in UTF-8 without a byte order mark"
)

// maxHeader is how many bytes a target and the cookies may have. Most servers take less.
const maxHeader = 64 << 10

// Target returns an error unless the target of a request is in origin form: a path, and perhaps a query. Servers disagree on the path
// of any other: where there is none to a router, such as in x:orders/42, Python's upstreams find one.
func Target(r *http.Request) error {
	target := r.RequestURI
	if target == "" && r.URL != nil { // a program has made the request
		target = r.URL.RequestURI()
	}
	if r.Method != http.MethodConnect && (!strings.HasPrefix(target, "/") || strings.Contains(target, "#")) || len(target) > maxHeader {
		return ErrTarget
	}
	return nil
}

// Media returns the media type of a Content-Type, in lower case, and an error if it has a parameter that isn't certain to change nothing.
func Media(header string) (string, error) {
	media, parameter, more := strings.Cut(strings.ToLower(header), ";")
	media = strings.Trim(media, " \t")
	name, value, _ := strings.Cut(strings.Trim(parameter, " \t"), "=")
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	// Many clients write utf8, which is a name of the same encoding to those who know it.
	if more && (name != "charset" || value != "utf-8" && value != "utf8") {
		return media, ErrParameter
	}
	return media, nil
}

// Form returns an error unless a form or query has the characters that one may have. Its names are FormName's.
func Form(raw []byte) error {
	raw = bytes.TrimRight(raw, "\r\n") // of a file that was sent
	for i, c := range raw {
		if c < ' ' || c > '~' || c == ';' || c == '%' && !isEscape(raw[i:]) { // some readers separate fields by ";"
			return ErrForm
		}
	}
	return nil
}

const inNames = "-_.:~@$*/,()'[] " // besides letters and digits

// FormName returns an error unless a name, its escapes undone, can't be read as anything else: as JSON, or the sign of a query.
func FormName(name []byte) error {
	if len(name) == 0 || strings.IndexByte("*/,()'[] ", name[0]) >= 0 {
		return ErrFormName
	}
	for _, c := range name {
		if !fold.IsAlphanumeric(c) && strings.IndexByte(inNames, c) < 0 {
			return ErrFormName
		}
	}
	return nil
}

// Cookies returns an error if the lines of the header Cookie are too much to look at.
func Cookies(lines []string) error {
	size, parts := 0, 0
	for _, line := range lines {
		size += len(line)
		for _, sign := range []string{";", ",", "="} {
			parts += strings.Count(line, sign)
		}
	}
	if size > maxHeader || parts > 1_000 {
		return ErrCookies
	}
	return nil
}

// CookieValue returns an error unless it is one of RFC 6265, with valid escapes. CGI.pm splits it at "&", and WebOb at brackets.
func CookieValue(value string) error {
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	for i, c := range []byte(value) {
		if c <= ' ' || c > '~' || strings.IndexByte(`",;\&[]`, c) >= 0 || c == '%' && !isEscape([]byte(value[i:])) {
			return ErrCookie
		}
	}
	return nil
}

func isEscape(raw []byte) bool { return len(raw) > 2 && fold.Hex(raw[1]) < 16 && fold.Hex(raw[2]) < 16 }
