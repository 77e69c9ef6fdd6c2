// Package grammar is the one way in which a request may be written where a key, an ID or what else decides on a lock is read from it.
//
// Upstreams read one request in different ways, and an enumeration of these is never complete. So this says what every reader takes
// for the same, which is what clients write that mean no harm; everything else is refused, with an error that names the rule.
package grammar

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// The rules, as the errors of what breaks them.
const (
	ErrTarget    fold.Error = `target of the request doesn't begin with "/", has a "#", or is longer than 64 KiB`
	ErrParameter fold.Error = "Content-Type has a charset other than utf-8, or of a form another parameter, or names a second type"
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

// The formats of bodies.
const (
	JSON       = "json"
	Urlencoded = "form"
)

// Format returns the format of a body by its Content-Type, unless that is known, or "" for any other, and an error if a parameter may have
// some program read it in another way. All of those that JSON has with honest clients, such as odata.metadata, change nothing but one.
func Format(header, known string) (format string, err error) {
	media, parameters, _ := strings.Cut(strings.ToLower(header), ";")
	media = strings.Trim(media, " \t")
	switch {
	case known != "":
		format = known
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		if format = JSON; others.MatchString(media) || strings.ContainsAny(media, " \t") {
			return format, ErrParameter
		}
	case media == "application/x-www-form-urlencoded":
		format = Urlencoded
	default:
		return "", nil
	}
	charsets := 0
	for parameter := range strings.SplitSeq(parameters, ";") {
		switch name, value, _ := strings.Cut(strings.Trim(parameter, " \t"), "="); {
		case name == "charset" && isUTF8(value, format):
			charsets++
		case name != "" && format != JSON: // formidable finds the type of a body in them
			return format, ErrParameter
		}
	}
	if strings.Count(parameters, "charset") != charsets || charsets > 1 || others.MatchString(parameters) {
		return format, ErrParameter
	}
	return format, nil
}

// others finds the types of bodies that some reader finds anywhere in a header, and what may separate two headers.
var others = regexp.MustCompile(`urlencoded|multipart|form-data|octet-stream|text/|,|[^ -~\t]`)

// isUTF8 reports whether an encoding is that of JSON. Many clients write utf8, which is a name of the same encoding to those who know it.
func isUTF8(charset, format string) bool {
	if len(charset) > 1 && charset[0] == '"' && charset[len(charset)-1] == '"' {
		charset = charset[1 : len(charset)-1]
	}
	return charset == "utf-8" || charset == "utf8" || charset == ascii && format == JSON
}

const ascii = "us-ascii"

// Charset returns an error unless a body of JSON has only characters of the encoding that its Content-Type declares.
func Charset(header string, body []byte) error {
	if strings.Contains(strings.ToLower(header), ascii) && bytes.IndexFunc(body, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		return ErrParameter
	}
	return nil
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
