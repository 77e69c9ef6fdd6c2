package middleware_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// The headers from which a key, a signature or an ID was read reach the upstream, whatever the client writes into Connection.
func TestConnectionTakesNothingAway(t *testing.T) {
	t.Parallel()
	upstream := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, r.Header.Get("X-Customer"), r.Header.Get("Content-Type"), r.Header.Get("Cookie"), r.Header.Get("X-Id"), r.Header.Get("Te"), string(body))
	}))
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(address) }}
	const want = `7application/jsona=1d1trailers{"id":1}`
	for name, rule := range map[string]middleware.Rule{
		"a rule":  {},
		"dry run": {DryRun: true},
		"passed":  {Keys: []string{"{header.X-None}"}, OnMissingKey: middleware.Pass},
	} {
		rule.Dedupe = "{header.X-Id}"
		server := serve(t, middleware.New(newLocker(t, live), "{header.X-Customer}:{cookie.a}:{body.id}", rule)(proxy))
		for _, connection := range [][]string{{"X-Customer"}, {"content-type, keep-alive"}, {"Cookie,x-id ,X-Customer"}, {"keep-alive", "close, X-Customer,,"}, {"\tX-Customer\t"}, {"TE"}} {
			r := newRequest(t, server.URL, "X-Customer", "7", "Content-Type", "application/json", "Cookie", "a=1", "X-Id", "d1", "Te", "trailers")
			r.Header["Connection"] = connection
			r.Body = io.NopCloser(strings.NewReader(`{"id":1}`))
			if got := do(t, r); got.StatusCode != http.StatusOK || got.body != want {
				t.Errorf("%s, Connection: %q: %d %s", name, connection, got.StatusCode, got.body)
			}
		}
	}
}
