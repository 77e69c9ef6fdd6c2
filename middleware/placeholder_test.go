package middleware_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestPlaceholderOfPattern(t *testing.T) {
	t.Parallel()
	value, err := middleware.Placeholder("path.id")
	if err != nil {
		t.Fatal(err)
	}
	var got string
	mux := http.NewServeMux()
	mux.HandleFunc("/orders/{id}/{rest...}", func(_ http.ResponseWriter, r *http.Request) { got, err = value(r) })
	for target, want := range map[string]string{
		"/orders/42/pay": "42", "/orders/a%2Fb/pay": "", "/orders/42;%2F..%2F43/pay": "", "/orders/42/..%2F43/pay": "",
	} {
		got, err = "", nil
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, target, nil))
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v, want %q", target, got, err, want)
		}
	}
	if got, err := value(httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)); got != "" || !errors.Is(err, middleware.ErrMissingKey) || !strings.Contains(err.Error(), "put the middleware inside the router") {
		t.Errorf("without a pattern: %q, %v", got, err)
	}
}

// TestQueryBesideForm: some readers merge a form with the query, and Rack takes the body of a POST without a type for a form.
func TestQueryBesideForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method string
		header http.Header
		want   string
	}{
		{http.MethodPost, http.Header{"Content-Type": {formType}}, "ambiguous"},
		{http.MethodPut, http.Header{"Content-Type": {"text/plain; x=" + formType}}, "refused"},
		{http.MethodPut, http.Header{"Content-Type": {"text/plain", "text/plain"}}, "refused"},
		{http.MethodPost, http.Header{}, "ambiguous"},
		{http.MethodPost, http.Header{"Content-Type": {""}}, "ambiguous"},
		{http.MethodPost, http.Header{"Content-Type": {" ; charset=utf-8"}}, "ambiguous"},
		{http.MethodPost, http.Header{"Content-Type": {","}}, "ambiguous"},
		{http.MethodPut, http.Header{}, "42"},
		{http.MethodPost, http.Header{"Content-Type": {"text/plain"}}, "42"},
	} {
		r := httptest.NewRequest(c.method, "/?order=42", strings.NewReader("order=43"))
		r.Header = c.header
		if got := keysFor(t, "{query.order}", r); got != c.want && (c.want != "refused" || !strings.HasPrefix(got, "refused: ")) {
			t.Errorf("%s with %v: %s, want %s", c.method, c.header, got, c.want)
		}
	}
}

func TestUnknownPlaceholders(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "path.", "header", "header.", "header.Host", "header.host", "header.transfer-encoding", "header.Trailer",
		"header.X Order", "header.X-Order ", "header.X:Order", "path.1 ", "path. 1", "path.65536", "path.-1", "query. id", "query.id\t", "cookie. id", "cookie.a;b", "cookie.a,b", "cookie.a=b", "cookie.ä", "query.ä", "query._", "query.", "cookie.", "body.id", "Method", "host.x", "method.x", "x"} {
		if _, err := middleware.Placeholder(name); err == nil {
			t.Errorf("{%s} is taken", name)
		}
	}
}

// Identifiers as they are pass the kind id; what some reader of a path changes does not there.
func TestIdentifiers(t *testing.T) {
	t.Parallel()
	for id, inPath := range map[string]bool{
		"pi_3N5abcDEF": true, "cus_9s6XKzkNRiz8i3": true, "blue-shoes": true, "MDQ6VXNlcjU4MzIzMQ==": true, "auth0|5f7c8ec7c33c6c004bbafe82": true, "~jane": true, "jane@x": true, "01ARZ3NDEKTSV4RRFFQ69G5FAV": true,
		"gid://shopify/Order/450789469": false, "jane+a@x.example": false, "1503435956.000247": false, "arn:aws:s3:::bucket/key": false, "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk": false,
		"2026-11-25T10:00:00Z": false, "4/0AX4XfWh": false, "42.json": false, "42:pay": false,
	} {
		if got := keysFor(t, "{header.Id:id}", keyRequest("/", "Id", id)); strings.HasPrefix(got, "refused: ") {
			t.Errorf("%s in a header: %s", id, got)
		}
		if strings.ContainsAny(id, "/") {
			continue // of which a path has no segment
		}
		if got := keysFor(t, "{path.1:id}", keyRequest("/x/"+url.PathEscape(id))); strings.HasPrefix(got, "refused: ") == inPath {
			t.Errorf("%s in a path: %s", id, got)
		}
	}
	for _, text := range []string{"a b", "a,b", "a;b", "a&b", "a#b", "a?b", "a%b", `a\b`, `a"b`, "a[b", "a{b", "a\u00e9", strings.Repeat("a", 2049)} {
		if got := keysFor(t, "{json.id:id}", withBody(jsonType, fmt.Sprintf(`{"id":%q}`, text))); !strings.HasPrefix(got, "refused: ") {
			t.Errorf("%.10q in JSON: %s", text, got)
		}
	}
	parsed, err := middleware.ParseTemplate("{path.1}:{json.a:id|form.b}:{method}:{header.X:uuid}:{host}", middleware.Placeholder)
	if got := parsed.WithoutKind(); err != nil || strings.Join(got, " ") != "path.1 form.b" {
		t.Errorf("without a kind: %q, %v", got, err)
	}
}
