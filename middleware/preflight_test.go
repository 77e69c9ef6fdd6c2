package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A preflight passes without a lock, and nothing else with its method does.
func TestPreflight(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, []string{"memory://"})
	with := func(more ...string) []string {
		return append([]string{"Origin", "https://a.example", "Access-Control-Request-Method", "POST"}, more...)
	}
	for _, c := range []struct {
		method, target, body string
		headers              []string
		passes               bool
	}{
		{"OPTIONS", "/pay", "", with(), true},
		{"OPTIONS", "/pay", "", with("Access-Control-Request-Headers", "idempotency-key"), true},
		{"OPTIONS", "/pay?x=1", "", with(), true},
		{"OPTIONS", "/pay", "{}", with(), false},
		{"OPTIONS", "/pay", "", with("Cookie", "a=b"), false},
		{"OPTIONS", "/pay", "", with("Authorization", "Bearer x"), false},
		{"OPTIONS", "/pay", "", with("X-HTTP-Method-Override", "POST"), false},
		{"OPTIONS", "/pay?_method=POST", "", with(), false},
		{"OPTIONS", "/pay", "", nil, false},
		{"OPTIONS", "/pay", "", []string{"Origin", "https://a.example"}, false},
		{"OPTIONS", "/pay", "", []string{"Access-Control-Request-Method", "POST"}, false},
		{"options", "/pay", "", with(), false},
		{"POST", "/pay", "", with(), false},
	} {
		for template, rule := range map[string]middleware.Rule{
			"order:{json.id}":    {},
			"order:{header.X-O}": {IdempotencyKey: "required"},
			"":                   {Preset: "idempotency-key"},
		} {
			ask := func() *http.Request {
				r := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
				for i := 0; i < len(c.headers); i += 2 {
					r.Header.Set(c.headers[i], c.headers[i+1])
				}
				return r
			}
			served := false
			handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })
			middleware.New(locker, template, rule)(handler).ServeHTTP(httptest.NewRecorder(), ask())
			explained := middleware.Explain(template, ask(), rule).String()
			if served != c.passes || strings.Contains(explained, "served    without a lock") != c.passes {
				t.Errorf("%s %s %q %v: served %v, %s", c.method, c.target, c.body, c.headers, served, explained)
			}
		}
	}
}
