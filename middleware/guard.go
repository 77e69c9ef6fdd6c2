package middleware

import (
	"cmp"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// errHiddenPath is the error for a path in which some upstream finds a different path.
const errHiddenPath = fold.Error(`path has a ";", a backslash, something behind a script such as "index.php" or "index", or a session "(S(...))" in it, or is escaped twice`)

// hidesPath matches a path that has a ";" or a backslash, or from which some upstream removes a part: the name of a script, or an ASP.NET session.
// Symfony, CodeIgniter 3 and Yii 2 remove the name of a script even without a slash after it, and read "/index.php42" as "/42". In "windows.php.net"
// the suffix belongs to a host, so a suffix before a dot and a letter or digit doesn't count. Other suffixes, such as ".pl", are also common at the
// end of hosts and words. They count only before a slash, and only if no "@" is before them in the segment.
var hidesPath = regexp.MustCompile(`(?is)[;\\]|/\([a-z]\([^/]*\)\)/|\.(php|phtml|f?cgi)([^.]|\.([^a-z0-9]|$))|(^|/)[^/@]*\.(phar|pl|py|aspx?|cfm)/`)

// frontController matches a path that begins with a usual name of a front controller. After such a name, the suffix counts without a slash, too. The
// expression captures the suffix and the rest of the path.
var frontController = regexp.MustCompile(`(?is)^/+(?:index|app|main|default)\.((?:pl|py|cfm|asp).+)`)

// otherFiles are suffixes of other files, which begin like the suffixes of front controllers.
var otherFiles = []string{"plist", "plx", "pyc", "pyi", "pyw", "pyx", "cfml", "aspx"}

// negotiated are the front controllers that Apache's MultiViews serve without their suffix, or with the suffix of a language or type. Names such as
// "app" and "main" aren't among them, because many routes have these names.
var negotiated = []string{"index", "index_dev", "app_dev"}

// hidesRoute reports whether some upstream may remove a part of the path, such as the name of a script, and serve the rest as a different route.
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

// rewritten are the headers from which some upstream is known to take the path. IIS, old Symfony and Laminas read X-Original-Url and X-Rewrite-Url,
// Django behind Daphne reads Daphne-Root-Path, and Pyramid reads X-Vhm-Root. A snippet for Flask behind proxies reads X-Script-Name, and Next.js
// reads X-Invoke-Path and X-Matched-Path.
var rewritten = append([]string{"X-Original-Url", "X-Rewrite-Url", "Daphne-Root-Path", "X-Script-Name", "X-Vhm-Root", "X-Invoke-Path", "X-Matched-Path"}, pathHeaders[:]...)

// harmless are headers in which honest clients (S3, Azure, SvelteKit) and proxies send a path. The values of X-Ssl-Client-Dn and X-Ssl-Issuer are
// names such as /C=DE.
var harmless = []string{"X-Amz-Copy-Source", "X-Ms-Rename-Source", "X-SvelteKit-Pathname", "X-Forwarded-Prefix", "X-Forwarded-Path", "X-Forwarded-Uri", "X-Original-Uri",
	"X-Envoy-Original-Path", "X-Replaced-Path", "X-Waws-Unencoded-Url", "X-Auth-Request-Redirect", "X-Accel-Mapping", "X-Ssl-Client-Dn", "X-Ssl-Issuer"}

// inBase64 matches a signature or a token, which may begin with a slash. It requires a capital letter, because nearly every long token has one, and
// most paths have none.
var inBase64 = regexp.MustCompile(`^[A-Za-z0-9+/]*[A-Z][A-Za-z0-9+/]*=*$`)

// namesPath reports whether some upstream may take the path from this header. For some headers, an upstream that does so is known. Any other header
// is suspected if its name begins with "X-" and its value with a slash. A header with a URL such as https://x isn't suspected, because webhooks and
// web pages send such headers to say where they come from.
func namesPath(name string, values []string) bool {
	if isHeader(name, rewritten) {
		return true
	}
	return len(name) > 1 && fold.SameHeader(name[:2], "X-") && !isHeader(name, harmless) && slices.ContainsFunc(values, func(value string) bool {
		return strings.HasPrefix(strings.TrimLeft(value, " \t"), "/") && !(len(value) >= 20 && inBase64.MatchString(value))
	})
}

func stripRoute(r *http.Request) {
	for name, values := range r.Header {
		if namesPath(name, values) || isHeader(name, overrides) {
			delete(r.Header, name)
		}
	}
}

// Guard refuses requests that a router or matcher may read differently than an upstream, so that they would bypass a rule: see CheckTarget. Guard
// checks only requests that may change something. It refuses them with 400 and the outcome unclear_target, and logs them under the name "guard". If
// rules also lock requests that change nothing, call CheckTarget instead.
func Guard(next http.Handler) http.Handler {
	c := newGuard(Rule{Logger: notices.Default()})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := c.guard(r, mayChange); refusal != nil {
			refusal.Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// newGuard returns a rule without keys, whose guard logs and counts refusals by the rule's Name, Logger and Observer.
func newGuard(rule Rule) *compiled {
	rule.Name = cmp.Or(rule.Name, "guard")
	c := byDefault(rule)
	c.observeBegin()
	return c
}

// guard returns a refusal if CheckTarget has an error and matters, which it calls only then, reports true. It removes an offer of h2c, and the body of
// CONNECT, from every request.
func (c *compiled) guard(r *http.Request, matters func(*http.Request) bool) parts.Refusal[Turn] {
	stripTunnel(r)
	err := CheckTarget(r)
	if err == nil || !matters(r) {
		return nil
	}
	refusal := refusalBeforeLock(r.Context(), &refusalReason{outcome: OutcomeUnclearTarget, text: err.Error()})
	refusal.turn.Rule, refusal.turn.Detail = c.Name, err.Error()
	c.logOutcome("request is refused", refusal.turn, err, slog.Int("status", refusal.status))
	c.observeDone(OutcomeUnclearTarget, 0)
	refusal.turn.noteIn(r.Context())
	return refusal
}

func mayChange(r *http.Request) bool {
	return !changesNothing(r.Method) || r.URL == nil || checkOverride(r) != nil
}

// CheckTarget returns an error for a request that a router and an upstream may read differently:
//
//   - The target doesn't begin with "/".
//   - Only some servers clean the path: it has empty segments, dots, ";", "\", double escapes, text after the name of a script or "index", or letters
//     that fold to ASCII.
//   - Some servers find the path in the query or in a header.
//   - The method isn't in upper case, or a header or the parameter _method in the query asks for a different one.
//
// The error contains nothing from the request.
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

func mentions(r *http.Request, word string) bool {
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

// parameters returns the values that some reader finds for a parameter in a query. PHP ends a name at a NUL or a bracket, and some readers end a pair
// at a ";".
func parameters(query, wanted string) (values []string) {
	for pair := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		name, _, _ = strings.Cut(unescaped(name), "\x00")
		name, inside, _ := strings.Cut(strings.TrimLeft(name, " "), "[")
		if inside != "" && !strings.Contains(inside, "]") { // PHP replaces a bracket that isn't closed by "_", and continues the name
			name += "_" + inside
		}
		if strings.EqualFold(asPHP.Replace(name), wanted) {
			values = append(values, value)
		}
	}
	return values
}
