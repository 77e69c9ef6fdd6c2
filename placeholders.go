package caddyredlock

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// strict are Caddy's names of values that a client may give more than once, or escape in several
// ways. Caddy joins or decodes them; package middleware refuses what is ambiguous, lest the lock be
// on one value and the upstream act on another.
var strict = map[string]string{
	"http.request.header.":    "header.",
	"http.request.cookie.":    "cookie.",
	"http.request.uri.query.": "query.",
	"http.request.uri.path.":  "path.",
}

// isStrict says whether the rest of a name in those families is a header, cookie, parameter or
// segment of the path: {http.request.uri.path.dir} is none.
func isStrict(family, rest string) bool {
	switch family {
	case "path.":
		return strings.Trim(rest, "0123456789") == ""
	case "header.":
		return !strings.EqualFold(rest, "host")
	}
	return true
}

// placeholder gives the meaning of a placeholder of Caddy in a key template. The Caddyfile's short
// names are known too, as the Caddyfile itself doesn't find them in {header.A|query.b}.
func placeholder(name string) (middleware.KeyFunc, error) {
	if name == "method" || name == "host" {
		name = "http.request." + name
	}
	if strings.HasPrefix(name, "http.request.body") {
		return nil, fmt.Errorf("{%s} is the whole body, without limit; name a field of it, such as {body.order.id}", name)
	}
	if !strings.Contains(name, ".") {
		return nil, fmt.Errorf("unknown placeholder {%s}; Caddy's have a dot, such as {http.request.uri.path.1} or, in a Caddyfile, {path.1}", name)
	}
	for caddys, ours := range strict {
		arg, ok := strings.CutPrefix(name, caddys)
		if !ok {
			arg, ok = strings.CutPrefix(name, ours)
		}
		if ok && isStrict(ours, arg) {
			return middleware.Placeholder(ours + arg)
		}
	}
	return func(r *http.Request) (string, error) {
		repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		switch value, _ := repl.Get(name); value := value.(type) {
		case nil: // not known, perhaps because another handler has not set it
			return "", middleware.ErrMissingKey
		case error:
			return "", value
		default:
			return caddy.ToString(value), nil
		}
	}, nil
}

func setPlaceholders(repl *caddy.Replacer, turn middleware.Turn) {
	repl.Set("http.redlock.key", turn.Key)
	if turn.Lock != nil {
		repl.Set("http.redlock.fence", turn.Lock.Fence())
	}
	repl.Set("http.redlock.wait", turn.Waited.Seconds())
	repl.Set("http.redlock.outcome", string(turn.Outcome))
}
