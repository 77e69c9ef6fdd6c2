package middleware_test

import (
	"net/http"
	"net/http/httptest"
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
	if got, err := value(httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)); got != "" || err != nil {
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
