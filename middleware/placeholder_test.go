package middleware_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestPlaceholder(t *testing.T) {
	t.Parallel()
	const (
		missing   = "\x00missing"
		ambiguous = "\x00ambiguous"
		refused   = "\x00refused"
	)
	request := func(target string, headers ...string) *http.Request {
		r := httptest.NewRequest(http.MethodPut, target, nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		return r
	}
	host := func(host string) *http.Request {
		r := request("/")
		r.Host = host
		return r
	}
	for _, c := range []struct {
		placeholder string
		request     *http.Request
		want        string
	}{
		{"method", request("/"), "PUT"},

		{"host", host("Shop.Example.COM"), "shop.example.com"},
		{"host", host("shop.example.com:8080"), "shop.example.com"},
		{"host", host("[::1]:8080"), "::1"},
		{"host", host("[::1]"), "::1"}, // the same, with and without port
		{"host", host(""), missing},

		{"path.0", request("/orders/42/pay"), "orders"},
		{"path.1", request("/orders/42/pay"), "42"},
		{"path.2", request("/orders/42/pay"), "pay"},
		{"path.1", request("/orders/42/"), "42"},
		{"path.1", request("/orders/42?x=/43/"), "42"},
		{"path.1", request("/orders/%34%32"), "42"},
		{"path.1", request("/orders/42%2Fpay"), refused}, // Flask and Django split the path at an escaped slash
		{"path.1", request("/orders%2F42/pay"), refused},
		{"path.1", request("/orders/42%5Cpay"), refused},
		{"path.1", request("/orders/42/pay%2F"), "42"},
		{"path.1", request("/orders/42;x=1/pay"), "42"},
		{"path.1", request("/orders;x/42/pay"), "42"},
		{"path.1", request("/orders/;x/42/pay"), refused},
		{"path.1", request("/orders/..;/42/pay"), refused},
		{"path.1", request("/orders/42#/pay"), refused},
		{"path.1", request("/orders/%EF%BC%94%EF%BC%92"), "\uff14\uff12"}, // the template folds it
		{"path", request("/orders/42/"), "/orders/42"},
		{"path", request("/orders//42"), refused},
		{"path.3", request("/orders/42/pay"), missing},
		{"path.1", request("/orders/"), missing},
		{"path.0", request("/"), missing},
		{"path.1", request("/orders//42"), refused},
		{"path.0", request("/orders//42"), refused}, // even if the wanted segment is clean
		{"path.0", request("//orders/42"), refused},
		{"path.1", request("/./orders/42"), refused},
		{"path.1", request("/orders/../42"), refused},
		{"path.1", request("/orders/42/.."), refused},
		{"path.1", request("/orders/%2e%2E/42"), refused},

		{"header.X-Order", request("/", "X-Order", "42"), "42"},
		{"header.x-order", request("/", "X-Order", "42"), "42"},
		{"header.X-Order", request("/", "X-Order", ""), missing},
		{"header.X-Order", request("/"), missing},
		{"header.X-Order", request("/", "X-Order", "42", "X-Order", "43"), ambiguous},
		{"header.X-Order", request("/", "X-Order", "1", "X_Order", "42"), ambiguous},
		{"header.X-Order", request("/", "X_Order", "42"), ambiguous},
		{"header.X-Order", request("/", "X-Order", "42", "X-Order", "42"), ambiguous},

		{"query.order", request("/?order=42"), "42"},
		{"query.order", request("/?order=4%32+%20"), "42  "},
		{"query.a.b", request("/?a.b=42"), "42"},
		{"query.order", request("/?Order=42"), ambiguous}, // not missing, because some reader finds it
		{"query.order", request("/?order=42#a"), refused},
		{"query.order", request("/?order=1&+order=42"), refused},
		{"query.order", request("/?order.0=42"), ambiguous}, // a list, as order[0] is
		{"query.order", request("/?order=1&order%00=42"), refused},
		{"query.order", request("/?order=1&[order]=42"), refused},
		{"query.order", request("/?order=1&order]=42"), ambiguous},
		{"query.order_id", request("/?order_id=1&order.id=42"), ambiguous},
		{"query.order.id", request("/?order[id]=42"), "42"},
		{"query.order", request("/?order="), missing},
		{"query.order", request("/"), missing},
		{"query.order", request("/?order=42&order=43"), ambiguous},
		{"query.order", request("/?order=42&%6Frder=43"), ambiguous},
		{"query.order", request("/?order=42;x=1"), refused},
		{"query.order", request("/?order=42&x=%zz"), refused},

		{"cookie.order", request("/", "Cookie", "a=1; order=42"), "42"},
		{"cookie.order", request("/", "Cookie", "a=1", "Cookie", "order=42"), "42"},
		{"cookie.order", request("/", "Cookie", "a=order; border=2"), missing},
		{"cookie.order", request("/", "Cookie", "order="), missing},
		{"cookie.order", request("/", "Cookie", "order=42; order=43"), ambiguous},
		{"cookie.order", request("/", "Cookie", "order=42", "Cookie", "order=43"), ambiguous},
		{"cookie.order", request("/", "Cookie", "order=\xff; order=43"), refused}, // net/http reads only one of them
		{"cookie.order", request("/", "Cookie", "order; order=43"), ambiguous},
		{"cookie.order", request("/", "Cookie", "order=\xff"), refused},
		{"cookie.order", request("/", "Cookie", "order=%34%32"), "42"},
		{"cookie.order", request("/", "Cookie", "order=a%40b.example"), "a@b.example"},
		{"cookie.order", request("/", "Cookie", `order="42"`), "42"},
		{"cookie.order", request("/", "Cookie", `order="%2242%22"`), "42"},
		{"cookie.order", request("/", "Cookie", `order= 42`), refused},
		{"cookie.order", request("/", "Cookie", `order="\064\062"`), refused},
		{"cookie.order", request("/", "Cookie", `order=j:42`), refused},
		{"cookie.order", request("/", "Cookie", `order=100%`), refused},
		{"cookie.cart_id", request("/", "Cookie", "cart.id=42; cart_id=1"), ambiguous},
		{"cookie.cart_id", request("/", "Cookie", "cart.id=42"), ambiguous},
		{"cookie.cart_id", request("/", "Cookie", "cart_id[a]=42; cart_id=1"), ambiguous},
		{"cookie.cart_id", request("/", "Cookie", "x=1,cart_id=42; cart_id=1"), ambiguous},
		{"cookie.cart_id", request("/", "Cookie", "cart=1; cart_id=42; _ga=1,2"), "42"},
	} {
		value, err := middleware.Placeholder(c.placeholder)
		if err != nil {
			t.Errorf("{%s}: %v", c.placeholder, err)
			continue
		}
		template, err := middleware.ParseTemplate("{"+c.placeholder+"}", middleware.Placeholder)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := value(c.request)
		_, err = template.Key(c.request)
		switch {
		case errors.Is(err, middleware.ErrMissingKey):
			got = missing
		case errors.Is(err, middleware.ErrAmbiguousKey):
			got = ambiguous
		case err != nil:
			got = refused
		}
		if got != c.want {
			t.Errorf("{%s} of %s %s with %v: %q, want %q (error %v)", c.placeholder, c.request.Host, c.request.RequestURI, c.request.Header, got, c.want, err)
		}
		if err != nil && strings.Contains(err.Error(), "43") {
			t.Errorf("{%s}: the error shows a value: %v", c.placeholder, err)
		}
	}
}

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
