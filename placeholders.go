package caddyredlock

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// strict maps Caddy's families of placeholders to those of package middleware, for values that a client may send more than
// once or escape in several ways. Caddy joins or decodes such values. Package middleware refuses what is ambiguous, so that
// the lock is never on one value while the upstream acts on another.
var strict = map[string]string{
	"http.request.header.":    "header.",
	"http.request.cookie.":    "cookie.",
	"http.request.uri.query.": "query.",
	"http.request.uri.path.":  "path.",
}

// isStrict reports whether a name in one of those families is that of a header, a cookie, a parameter or a segment of the
// path. Others, such as {http.request.uri.path.dir}, are left to Caddy.
func isStrict(family, arg string) bool {
	return family != "path." || strings.Trim(arg, "-0123456789") == ""
}

// strictName returns the name that package middleware has for one of Caddy's placeholders, if it reads that itself.
func strictName(name string) (string, bool) {
	for caddys, ours := range strict {
		arg, ok := strings.CutPrefix(name, caddys)
		if !ok {
			arg, ok = strings.CutPrefix(name, ours)
		}
		if ok && isStrict(ours, arg) {
			return ours + arg, true
		}
	}
	return "", false
}

var shortNames = httpcaddyfile.NewShorthandReplacer()

// fullName returns Caddy's name of a placeholder, given the short one of the Caddyfile.
func fullName(name string) string {
	segment := caddyfile.Segment{{Text: "{" + name + "}"}}
	shortNames.ApplyToSegment(&segment)
	return strings.Trim(segment[0].Text, "{}")
}

// placeholder returns what reads the value of a Caddy placeholder in a key template. It also knows the short names of the
// Caddyfile, which Caddy does not expand in {header.A|query.b}.
func placeholder(name string) (middleware.KeyFunc, error) {
	switch name = fullName(name); name {
	case "http.request.host", "http.request.method":
		return middleware.Placeholder(strings.TrimPrefix(name, "http.request."))
	case "http.request.uri.path":
		return middleware.Placeholder("path")
	}
	if name == "body" || strings.HasPrefix(name, "http.request.body") {
		return nil, fmt.Errorf("{%s} is the whole body, without limit; name a field, such as {body.order.id}", name)
	}
	if !strings.Contains(name, ".") {
		return nil, fmt.Errorf("unknown placeholder {%s}; Caddy placeholders contain a dot, such as {http.request.uri.path.1} or, in a Caddyfile, {path.1}", name)
	}
	if ours, ok := strictName(name); ok {
		return middleware.Placeholder(ours)
	}
	if number, ok := strings.CutPrefix(name, "http.request.host.labels."); ok {
		return hostLabel(number)
	}
	return func(r *http.Request) (string, error) {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		switch value, _ := repl.Get(name); value := value.(type) {
		case nil: // unknown, perhaps because the handler that sets it was not run
			return "", middleware.ErrMissingKey
		case error:
			return "", value
		default:
			return caddy.ToString(value), nil
		}
	}, nil
}

// placeholderOf is the function placeholder for the templates of a rule.
func placeholderOf(rule *middleware.Rule, name string) (middleware.KeyFunc, error) {
	if ours, ok := strictName(fullName(name)); ok {
		return rule.Placeholder(ours)
	}
	return placeholder(name)
}

// hostLabel returns what reads a label of the host, counted from the right. Caddy would count the empty label behind a trailing
// dot as well, so that a client could choose between two labels.
func hostLabel(number string) (middleware.KeyFunc, error) {
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return nil, fmt.Errorf("{labels.%s}: want a number: the labels of a host are counted from the right, starting at 0", number)
	}
	host, err := middleware.Placeholder("host")
	return func(r *http.Request) (string, error) {
		name, err := host(r)
		labels := strings.Split(name, ".")
		if err != nil || int(n) >= len(labels) {
			return "", cmp.Or(err, middleware.ErrMissingKey)
		}
		return labels[len(labels)-1-int(n)], nil
	}, err
}
