package explain

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// hidden returns requests that some upstreams serve as r, by their targets: matchers may miss them.
func hidden(r *http.Request) map[string]*http.Request {
	path := r.URL.EscapedPath()
	requests := make(map[string]*http.Request)
	for _, target := range []string{"x:" + strings.TrimPrefix(path, "/"), "/x/.." + path, "/;x" + path, "/index.php" + path, "/%5C" + strings.TrimPrefix(path, "/")} {
		if parsed, err := url.ParseRequestURI(target); err == nil {
			other := withEnding(r, "")
			other.URL, other.RequestURI = parsed, target
			requests[target] = other
		}
	}
	inQuery := withEnding(r, "")
	inQuery.URL.Path, inQuery.URL.RawQuery, inQuery.RequestURI = "/", path, "/?"+path
	requests[inQuery.RequestURI] = inQuery
	overridden := withEnding(r, "")
	overridden.Method = http.MethodGet
	overridden.Header.Set("X-HTTP-Method-Override", r.Method)
	if r.Method != http.MethodGet {
		requests["GET "+path+" with X-HTTP-Method-Override: "+r.Method] = overridden
		lower := withEnding(r, "")
		lower.Method = strings.ToLower(r.Method)
		requests[lower.Method+" "+path] = lower
	}
	return requests
}

// reaching returns those of some requests that are served without all of so many rules.
func reaching(servers []*caddyhttp.Server, requests map[string]*http.Request, rules int) (names []string) {
	for name, r := range requests {
		if explain(servers, r).servedWithout(rules) {
			names = append(names, name)
		}
	}
	return names
}
