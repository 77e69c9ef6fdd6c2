// Package grammar says how a request must be written where a key, an ID or another input of a lock is read from it.
//
// Upstreams read one request in different ways, and no list of these ways is ever complete. So this package accepts only requests that
// every upstream reads in the same way, as harmless clients write them. It refuses everything else, with an error that names the rule.
package grammar

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// The errors, each of which names the rule that a request breaks.
const (
	ErrTarget    fold.Error = `target of the request doesn't begin with "/", has a "#", or is longer than 64 KiB`
	ErrParameter fold.Error = "Content-Type has a charset other than utf-8, or of a form another parameter, or names a second type"
	ErrForm      fold.Error = "form or query has other characters than printable ones of ASCII, a \";\", or a \"%\" that begins no escape"
	ErrFormName  fold.Error = "form or query has a name that is empty, has other characters than letters, digits, spaces and -_.:~@$*/,()'[], or begins with one behind the $"
	ErrCookies   fold.Error = "cookies are longer than 64 KiB, or have more than 1000 semicolons, commas and equals signs"
	ErrCookie    fold.Error = "cookie has a value with other characters than RFC 6265 allows, or with \"[\", \"]\", \"&\", or a \"%\" that begins no escape"
	ErrJSON      fold.Error = "body is not valid JSON, in UTF-8 without a byte order mark"
	ErrNotForm   fold.Error = "body looks like JSON, but its Content-Type is application/x-www-form-urlencoded: send application/json"
)

// maxHeader is how many bytes the target, or all cookies, may have. Most servers accept less.
const maxHeader = 64 << 10

// Target returns an error unless the target of a request is a path, perhaps with a query, or the method is CONNECT. Upstreams disagree on the path of
// any other target: routers find no path in x:orders/42, but upstreams in Python do.
func Target(r *http.Request) error {
	target := r.RequestURI
	if target == "" && r.URL != nil { // the request didn't come from a server
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

// Format returns the format of a body: known, if that isn't empty, and otherwise the format that the Content-Type names. It returns "" for a format
// that no key is read from. It returns an error if a parameter may make some program read the body in another format. For JSON, other parameters than
// charset are allowed, because harmless clients send some, such as odata.metadata.
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
		case name != "" && format != JSON: // the library formidable looks for the body's type in the parameters
			return format, ErrParameter
		}
	}
	if strings.Count(parameters, "charset") != charsets || charsets > 1 || others.MatchString(parameters) {
		return format, ErrParameter
	}
	return format, nil
}

// others matches the names of other formats, which some readers look for anywhere in the header, and characters that may separate two values.
var others = regexp.MustCompile(`urlencoded|multipart|form-data|octet-stream|text/|,|[^ -~\t]`)

// isUTF8 reports whether a body in this charset can be read as UTF-8. JSON may be declared as us-ascii, which Charset checks.
// Many clients write utf8, and programs that know this name take it for UTF-8.
func isUTF8(charset, format string) bool {
	if len(charset) > 1 && charset[0] == '"' && charset[len(charset)-1] == '"' {
		charset = charset[1 : len(charset)-1]
	}
	return charset == "utf-8" || charset == "utf8" || charset == ascii && format == JSON
}

const ascii = "us-ascii"

// Charset returns an error if a JSON body has characters above ASCII although its Content-Type declares us-ascii. Format accepts no other charset
// than us-ascii and UTF-8.
func Charset(header string, body []byte) error {
	if strings.Contains(strings.ToLower(header), ascii) && bytes.IndexFunc(body, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		return ErrParameter
	}
	return nil
}

// Form returns an error if a form or query has a character that none should have. FormName checks the names.
func Form(raw []byte) error {
	raw = bytes.TrimRight(raw, "\r\n") // a client that sends a file may send its last line break
	for i, c := range raw {
		if c < ' ' || c > '~' || c == ';' || c == '%' && !isEscape(raw[i:]) { // some readers take ";" for a separator
			return ErrForm
		}
	}
	return nil
}

// LooksLikeJSON reports whether a body begins as an object or array in JSON. FormName refuses such a form. Some clients, such as curl -d, call all that
// they send a form.
func LooksLikeJSON(body []byte) bool {
	body = bytes.TrimLeft(body, " \t\r\n")
	return len(body) > 0 && (body[0] == '{' || body[0] == '[')
}

const inNames = "-_.:~@$*/,()'[] " // the characters that a name may have besides letters and digits

// FormName returns an error for an unescaped name that some reader takes for something other than a name, for example for JSON.
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

// Cookies returns an error if the lines of the header Cookie are too long to be searched.
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

// CookieValue returns an error unless a value has only characters that RFC 6265 allows, and valid escapes. It also refuses "&", where CGI.pm splits a
// value, and brackets, where WebOb does.
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
