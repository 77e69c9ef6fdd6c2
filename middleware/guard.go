package middleware

import (
	"cmp"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// errHiddenPath is the error for a path in which some upstream finds a different path.
const errHiddenPath = fold.Error(`path has a ";", a backslash, something behind a script such as "index.php" or "index", or a session "(S(...))" in it, or is escaped twice`)

// hidesPath finds the parts of a path that some upstream takes off: a script, which serves the rest, and ASP.NET's sessions without cookies. Symfony,
// CodeIgniter 3 and Yii 2 take a script's name off even without a slash behind it: "/index.php42" is "/42" to them. A dot and a letter or digit
// behind it are no route, but belong to a host, such as "windows.php.net". Suffixes that are also the ends of hosts and words need a slash behind
// them, and no "@" before them.
var hidesPath = regexp.MustCompile(`(?is)[;\\]|/\([a-z]\([^/]*\)\)/|\.(php|phtml|f?cgi)([^.]|\.([^a-z0-9]|$))|(^|/)[^/@]*\.(phar|pl|py|aspx?|cfm)/`)

// frontController finds one at the beginning of a path, whose suffix needs no slash.
var frontController = regexp.MustCompile(`(?is)^/+(?:index|app|main|default)\.((?:pl|py|cfm|asp).+)`)

// otherFiles are suffixes of other files, which begin like the suffixes of front controllers.
var otherFiles = []string{"plist", "plx", "pyc", "pyi", "pyw", "pyx", "cfml", "aspx"}

// negotiated are the front controllers that Apache's MultiViews serve without their suffix, or with that of a language or type. Others, such as "app"
// and "main", are honest words too often.
var negotiated = []string{"index", "index_dev", "app_dev"}

// hidesRoute reports whether something is behind a script or another part that some upstream takes off.
func hidesRoute(path string) bool {
	if strings.ContainsAny(path, `;\.(`) { // most paths contain none of these characters
		suffix := frontController.FindStringSubmatch(path)
		if suffix != nil && !slices.Contains(otherFiles, strings.ToLower(suffix[1])) || hidesPath.MatchString(path) {
			return true
		}
	}
	found := false
	for segment := range strings.SplitSeq(path, "/") {
		if found && segment != "" {
			return true
		}
		if end := strings.IndexAny(segment, ". :\x00"); end >= 0 { // Windows ends a name at some of these characters
			segment = segment[:end]
		}
		found = found || slices.ContainsFunc(negotiated, func(name string) bool { return strings.EqualFold(name, segment) })
	}
	return false
}

const errHiddenRoute = fold.Error(`query begins with a path, or has one in the parameter rest_route, _url or s`)

const errLetter = fold.Error(`path has a letter that some servers take for one of a to z, such as a long s`)

const errRewritten = fold.Error(`request names another path in a header, such as X-Original-URL, or in one that begins with "X-" and whose value begins with "/"`)

const errMethod = fold.Error(`method has other characters than upper-case letters and "-"`)

const errOverride = fold.Error("request asks for another method than its own")

// asPHP replaces characters in a name as PHP does.
var asPHP = strings.NewReplacer(".", "_", " ", "_")

// overrides are the headers in which frameworks let a client name a different method.
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// pathHeaders are the headers from which gunicorn takes a part of the path.
var pathHeaders = [...]string{"Script-Name", "Path-Info"}

// rewritten are the headers from which some upstream is known to take the path: IIS, old Symfony and Laminas from the first two, Django behind Daphne
// from the next, a snippet for Flask behind proxies from the one after that, Pyramid from X-Vhm-Root, and Next.js from the other two.
var rewritten = append([]string{"X-Original-Url", "X-Rewrite-Url", "Daphne-Root-Path", "X-Script-Name", "X-Vhm-Root", "X-Invoke-Path", "X-Matched-Path"}, pathHeaders[:]...)

// harmless are headers with a path from honest clients (S3, Azure, SvelteKit) and from proxies in front. X-Ssl-Client-Dn has a name such as /C=DE.
var harmless = []string{"X-Amz-Copy-Source", "X-Ms-Rename-Source", "X-SvelteKit-Pathname", "X-Forwarded-Prefix", "X-Forwarded-Path", "X-Forwarded-Uri", "X-Original-Uri",
	"X-Envoy-Original-Path", "X-Replaced-Path", "X-Waws-Unencoded-Url", "X-Auth-Request-Redirect", "X-Accel-Mapping", "X-Ssl-Client-Dn", "X-Ssl-Issuer"}

// inBase64 is a signature or a token, which may begin with a slash as well. One that long has capitals.
var inBase64 = regexp.MustCompile(`^[A-Za-z0-9+/]*[A-Z][A-Za-z0-9+/]*=*$`)

// namesPath reports whether some upstream may take the path from a header: from a known one, or from another one that begins with X, as each that
// names a path seems to, and whose value begins with a slash. An address such as https://x is harmless in a header that nobody knows: webhooks and
// pages say there where they come from.
func namesPath(name string, values []string) bool {
	if isHeader(name, rewritten) {
		return true
	}
	return len(name) > 1 && fold.SameHeader(name[:2], "X-") && !isHeader(name, harmless) && slices.ContainsFunc(values, func(value string) bool {
		return strings.HasPrefix(strings.TrimLeft(value, " \t"), "/") && !(len(value) >= 20 && inBase64.MatchString(value))
	})
}

// StripRoute removes from a request the headers that name another path or method to some upstream. It is for a request that was refused, before
// another handler writes an error page.
func StripRoute(r *http.Request) {
	for name, values := range r.Header {
		if namesPath(name, values) || isHeader(name, overrides) {
			delete(r.Header, name)
		}
	}
}

// Guard refuses requests that a router or matcher may read differently than an upstream, so that they would bypass its rules: see CheckTarget. It
// checks requests that may change something, answers with 400 and the outcome unclear_target, and logs them as the rule "guard". In front of
// handlers that also lock requests that change nothing, call CheckTarget.
func Guard(next http.Handler) http.Handler {
	refusalOf := NewGuard(Rule{Logger: slog.Default()})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := refusalOf(r, MayChange); refusal != nil {
			refusal.Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// NewGuard returns a function that returns a Refusal for a request if CheckTarget has an error, and nil otherwise. The function calls matters only
// for a request with such an error, and logs and counts refusals by the rule's Name, Logger and Observer. It removes an offer of h2c from every
// request.
func NewGuard(rule Rule) func(r *http.Request, matters func(*http.Request) bool) *Refusal {
	rule.Name = cmp.Or(rule.Name, "guard")
	c := byDefault(rule)
	c.observeBegin()
	return c.guard
}

func (c *compiled) guard(r *http.Request, matters func(*http.Request) bool) *Refusal {
	stripH2C(r.Header)
	err := CheckTarget(r)
	if err == nil || !matters(r) {
		return nil
	}
	refusal := refusalBeforeLock(r.Context(), &refusalReason{outcome: OutcomeUnclearTarget, text: err.Error()})
	refusal.Turn.Rule, refusal.Turn.Detail = c.Name, err.Error()
	c.logOutcome("request is refused", refusal.Turn, err, slog.Int("status", refusal.Status))
	c.observeDone(OutcomeUnclearTarget, 0)
	refusal.Turn.noteIn(r.Context())
	return refusal
}

// MayChange reports whether some upstream may change something for a request, because of its own method or of a method that it asks for.
func MayChange(r *http.Request) bool {
	return !changesNothing(r.Method) || r.URL == nil || checkOverride(r) != nil
}

// CheckTarget returns an error for a request whose target doesn't begin with "/", whose path only some servers clean (empty segments, dots, ";", "\",
// double escapes, something behind a script or "index", letters that fold to ASCII), whose path some servers find in the query or a header, whose
// method isn't in upper case, or that asks for a different method, in a header or in the query's parameter _method. The error contains nothing from
// the request.
func CheckTarget(r *http.Request) error {
	if _, err := segment(r, noSegment); err != nil {
		return err
	}
	path := r.URL.Path
	if hidesRoute(path) || hasEscape(path) {
		return errHiddenPath
	}
	if strings.ContainsFunc(path, foldsToASCII) {
		return errLetter
	}
	if strings.Trim(r.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
		return errMethod
	}
	for name, values := range r.Header {
		if namesPath(name, values) {
			return errRewritten
		}
	}
	if beginsWithPath(r.URL.RawQuery) || hasRoute(r.URL.RawQuery) {
		return errHiddenRoute
	}
	return checkOverride(r)
}

// foldsToASCII reports whether a letter outside ASCII equals one of a to z if case is ignored.
func foldsToASCII(letter rune) bool {
	const end = unicode.MaxASCII
	return letter > end && (unicode.SimpleFold(letter) <= end || unicode.ToLower(letter) <= end || unicode.ToUpper(letter) <= end)
}

// hasRoute reports whether a parameter of a query leads to a different path: rest_route in WordPress, _url in Phalcon, and s in ThinkPHP. A value of
// s without a slash doesn't count, because people search with a parameter of this name.
func hasRoute(query string) bool {
	return hasParameter(query, "rest_route") || hasParameter(query, "_url") ||
		slices.ContainsFunc(parameters(query, "s"), func(value string) bool { return strings.ContainsAny(unescaped(value), slashes) })
}

// beginsWithPath reports whether CodeIgniter, which takes the whole query for a path, finds a path in it.
func beginsWithPath(query string) bool {
	name, _, _ := strings.Cut(query, "&")
	name, _, _ = strings.Cut(name, "=")
	return strings.ContainsAny(unescaped(name), slashes)
}

// Mentions reports whether a request that CheckTarget refuses may lead to a path that contains this lower-case word.
func Mentions(r *http.Request, word string) bool {
	all := r.RequestURI
	for name, values := range r.Header {
		if namesPath(name, values) {
			all += " " + strings.Join(values, " ")
		}
	}
	once := unescaped(all)
	return strings.Contains(strings.ToLower(all+" "+once+" "+unescaped(once)), word)
}

func checkOverride(r *http.Request) error {
	if hasHeader(r.Header, overrides) || hasParameter(r.URL.RawQuery, "_method") {
		return errOverride
	}
	return nil
}

func hasParameter(query, wanted string) bool { return len(parameters(query, wanted)) > 0 }

// parameters returns the values that readers find for a parameter in a query. PHP ends a name at a NUL or at brackets, and others end a pair at a
// ";".
func parameters(query, wanted string) (values []string) {
	for pair := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		name, _, _ = strings.Cut(unescaped(name), "\x00")
		name, inside, _ := strings.Cut(strings.TrimLeft(name, " "), "[")
		if inside != "" && !strings.Contains(inside, "]") { // PHP takes a bracket that isn't closed for a part of the name
			name += "_" + inside
		}
		if strings.EqualFold(asPHP.Replace(name), wanted) {
			values = append(values, value)
		}
	}
	return values
}
