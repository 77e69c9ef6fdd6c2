package e2e

import (
	"net/http"
	"net/url"
	"testing"
)

// What this matcher misses, and some upstream takes for a payment of order 42, doesn't reach the upstream.
func TestGuard(t *testing.T) {
	b := newBackend(t, func() {})
	c := runCaddy(t, caddyfile("", `redlock_guard
	@pay {
		method POST
		path /orders*
	}
	redlock @pay order:{path.1}
	`+b.proxy()))
	ask := func(method, target string, headers ...string) *http.Request {
		r := request(c.url, headers...)
		r.Method, r.URL = method, &url.URL{Scheme: "http", Host: r.URL.Host, Opaque: target} // sent as it is
		return r
	}
	for _, r := range []*http.Request{
		ask("post", "/orders/42/pay"),
		ask("Post", "/orders/42/pay"),
		ask("POST", "/?/orders/42/pay"),
		ask("POST", "/?%2Forders/42/pay"),
		ask("POST", "/?x=1&rest_route=/orders/42/pay"),
		ask("POST", "/?rest.route=/orders/42/pay"),
		ask("POST", "/x?+_method=PUT"),
		ask("GET", "/orders/42/pay?a;_method=POST"),
		ask("GET", "/orders/42/pay", "X-HTTP-Method-Override", "POST"),
		ask("POST", "/x", "X-Original-URL", "/orders/42/pay"),
		ask("POST", "/x", "X-Rewrite-URL", "/orders/42/pay"),
		ask("POST", "/index.php/orders/42/pay"),
		ask("POST", "/;x/orders/42/pay"),
	} {
		if a := send(t, r); a.status != http.StatusBadRequest {
			t.Errorf("%s %s %v: %d", r.Method, r.URL.Opaque, r.Header, a.status)
		}
	}
	if n := b.servedTotal(); n != 0 {
		t.Errorf("%d requests came through", n)
	}
	for _, r := range []*http.Request{
		ask("POST", "/orders/42/pay"),
		ask("POST", "/search?q=/a/b&route=x"),
		ask("PROPFIND", "/x"),
		ask("GET", "/?x=/orders/42/pay"),
	} {
		requireStatus(t, send(t, r), http.StatusOK)
	}
}

// The guard looks at a request that changes nothing only if a rule may lock it, and its refusals are seen as those of a rule.
func TestGuardLooksAtRules(t *testing.T) {
	t.Parallel()
	b := newBackend(t, func() {})
	c := runCaddy(t, caddyfile("", `redlock_guard
	redlock /orders* order:{path.1:int} {
		on_missing_key pass
	}
	@changes {
		not method GET HEAD OPTIONS
		path /shop*
	}
	redlock @changes shop:{path.1:id} {
		on_missing_key pass
	}
	handle_errors {
		respond "{http.redlock.outcome} {http.redlock.rule} {http.redlock.detail}"
	}
	`+b.proxy()))
	ask := func(method, target string) received {
		r := request(c.url)
		r.Method, r.URL = method, &url.URL{Scheme: "http", Host: r.URL.Host, Opaque: target}
		return send(t, r)
	}
	for _, target := range []string{"/index.php/Main_Page", "/shop;jsessionid=1", "/assets//app.js"} {
		requireStatus(t, ask("GET", target), http.StatusOK)
	}
	const wantBody = `unclear_target guard path has a ';', a backslash, something behind a script such as 'index.php' or 'index', or a session '(S(...))' in it, or is escaped twice`
	for _, r := range [][2]string{{"GET", "/index.php/orders/42/pay"}, {"GET", "/index.php/%4frders/42/pay"}, {"POST", "/index.php/Main_Page"}, {"POST", "/shop;x/1"}} {
		if a := ask(r[0], r[1]); a.status != http.StatusBadRequest || a.header.Get("Redlock-Outcome") != "unclear_target" || a.body != wantBody {
			t.Errorf("%s: %d %s", r, a.status, a.body)
		}
	}
}
