package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	guarded := middleware.Guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	opaque := keyRequest("/")
	opaque.RequestURI, opaque.URL.Opaque, opaque.URL.Path = "x:orders/42/pay", "orders/42/pay", ""
	for _, c := range []struct {
		request *http.Request
		want    int
	}{
		{opaque, 400},
		{keyRequest("http://x/orders/42/pay"), 400},
		{keyRequest("//orders/42/pay"), 400},
		{keyRequest("/x/../orders/42/pay"), 400},
		{keyRequest("/x%2F..%2Forders/42/pay"), 400},
		{keyRequest("/;x/orders/42/pay"), 400},
		{keyRequest("/%3Bx/orders/42/pay"), 400},
		{keyRequest("/%5Corders/42/pay"), 400},
		{keyRequest("/Index.PHP/orders/42/pay"), 400},
		{keyRequest("/orders/42", "X-Http-Method-Override", "DELETE"), 400},
		{keyRequest("/orders/42", "X_http_method_override", "DELETE"), 400},
		{keyRequest("/orders/42?_method=DELETE"), 400},
		{keyRequest("/orders/42?x=1&%5fMethod=DELETE"), 400},
		{keyRequest("/orders/42?.method=DELETE"), 400},
		{keyRequest("/"), 200},
		{keyRequest("/orders/42/pay?x=;a//b&method=card&next=/../x"), 200},
		{keyRequest("/groups/a%2Fb/"), 200},
		{keyRequest("/index.php?id=42"), 200},
	} {
		w := httptest.NewRecorder()
		if guarded.ServeHTTP(w, c.request); w.Code != c.want {
			t.Errorf("%s %v: %d %s, want %d", c.request.RequestURI, c.request.Header, w.Code, w.Body, c.want)
		}
	}
}
