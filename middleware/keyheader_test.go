package middleware_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// shownKeys serves requests, and returns what the handler finds in the header Redlock-Key.
func shownKeys(t *testing.T, r *http.Request, rules ...func(http.Handler) http.Handler) (status int, shown []string) {
	t.Helper()
	var h http.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), "Redlock-Key") {
				shown = append(shown, values...)
			}
		}
	})
	for _, rule := range slices.Backward(rules) {
		h = rule(h)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if got := r.Header.Get("Redlock-Key"); got != "" {
		t.Errorf("%q is left behind the rules", got)
	}
	return w.Code, shown
}

// The upstream finds what was locked, by placeholder, whatever clients send under the name of that header.
func TestKeyHeader(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	rule := func(template string, more ...string) func(http.Handler) http.Handler {
		return middleware.New(l, template, middleware.Rule{Keys: more, KeyHeader: "Redlock-Key", OnMissingKey: middleware.Pass})
	}
	for name, test := range map[string]struct {
		rules []func(http.Handler) http.Handler
		want  string
	}{
		"path":              {[]func(http.Handler) http.Handler{rule("order:{path.1:int}")}, `{"path.1":["42"]}`},
		"folded":            {[]func(http.Handler) http.Handler{rule("{query.name}:{method}")}, `{"method":["post"],"query.name":["strasse\u65e5 \ud83d\ude00"]}`},
		"list":              {[]func(http.Handler) http.Handler{rule("{body.items[].id}")}, `{"body.items[].id":["7","8"]}`},
		"alternatives":      {[]func(http.Handler) http.Handler{rule("{org=json.no:int|json.id:int}")}, `{"json.no|json.id":["9"]}`},
		"labels":            {[]func(http.Handler) http.Handler{rule("{json.no|own=json.id}")}, `{"json.no|json.id":["9"]}`},
		"together":          {[]func(http.Handler) http.Handler{rule("{json.id&path.1}")}, `{"json.id|path.1":["42","9"]}`},
		"two keys":          {[]func(http.Handler) http.Handler{rule("a:{path.1}", "b:{body.id}")}, `{"body.id":["9"],"path.1":["42"]}`},
		"no placeholder":    {[]func(http.Handler) http.Handler{rule("all")}, `{}`},
		"missing":           {[]func(http.Handler) http.Handler{rule("{query.none}")}, ""},
		"nested":            {[]func(http.Handler) http.Handler{rule("{path.1}"), rule("{body.id}")}, `{"body.id":["9"],"path.1":["42"]}`},
		"nested and held":   {[]func(http.Handler) http.Handler{rule("{path.1}"), rule("{path.1}")}, `{"path.1":["42"]}`},
		"nested, missing":   {[]func(http.Handler) http.Handler{rule("{path.1}"), rule("{query.none}")}, `{"path.1":["42"]}`},
		"one without":       {[]func(http.Handler) http.Handler{rule("{path.1}"), middleware.New(l, "x", middleware.Rule{})}, `{"path.1":["42"]}`},
		"not the outer one": {[]func(http.Handler) http.Handler{middleware.New(l, "x", middleware.Rule{}), rule("{path.1}")}, `{"path.1":["42"]}`},
	} {
		r := httptest.NewRequest(http.MethodPost, "/orders/42?name=STRA%C3%9FE%E6%97%A5+%F0%9F%98%80", strings.NewReader(`{"id":9,"items":[{"id":8},{"id":"7"},{"id":8}]}`))
		r.Header.Set("Content-Type", "application/json")
		for _, spelling := range []string{"Redlock-Key", "redlock_key", "REDLOCK-KEY", "Redlock.Key"} {
			r.Header[spelling] = []string{`{"path.1":["43"]}`}
		}
		status, shown := shownKeys(t, r, test.rules...)
		if got := strings.Join(shown, " and "); status != http.StatusOK || got != test.want {
			t.Errorf("%s: %d %s, want %s", name, status, got, test.want)
		}
	}
}

// JSON that is a form to another reader shows both values, as both are locked; what is too long to be shown is refused.
func TestKeyHeaderOfOtherReaders(t *testing.T) {
	t.Parallel()
	locked := middleware.New(newLocker(t, live), "{body.id}", middleware.Rule{KeyHeader: "Redlock-Key"})
	for body, want := range map[string]string{
		`{"id":1,"x":"&id=42&"}`:                       `{"body.id":["1","42"]}`,
		`{"id":"` + strings.Repeat("日", 700) + `"}`:    "",
		`{"id":"` + strings.Repeat("abcd", 900) + `"}`: `{"body.id":["` + strings.Repeat("abcd", 900) + `"]}`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		status, shown := shownKeys(t, r, locked)
		if got := strings.Join(shown, ""); got != want || (status == http.StatusBadRequest) != (want == "") {
			t.Errorf("%.60s: %d %.60s, want %.60s", body, status, got, want)
		}
		if want != "" && !json.Valid([]byte(want)) {
			t.Errorf("%.60s is no JSON", want)
		}
	}
}

func TestKeyHeadersThatAreWrong(t *testing.T) {
	t.Parallel()
	for want, rule := range map[string]middleware.Rule{
		`key_header "a b": not the name`:       {KeyHeader: "a b"},
		`key_header "Cookie": has a meaning`:   {KeyHeader: "Cookie"},
		`key_header "fencing_token": is the`:   {KeyHeader: "fencing_token"},
		`this is the key_header`:               {KeyHeader: "X-Key", Dedupe: "{header.x_key}"},
		`key_header: needs the template of`:    {KeyHeader: "X-Key", IdempotencyKey: "required", Scope: "off"},
		`key_header "Stripe-Signature": the s`: {KeyHeader: "Stripe-Signature", Verify: []middleware.Verify{{Scheme: "stripe", Secrets: []string{"whsec_x"}}}},
	} {
		if rule.IdempotencyKey == "" {
			rule.Keys = []string{"k"}
		}
		if _, err := middleware.Compile(rule); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
