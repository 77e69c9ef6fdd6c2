package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A program may make a request itself, with nothing in it.
func TestRequestWithoutAnything(t *testing.T) {
	t.Parallel()
	lock := middleware.New(newLocker(t, []string{"memory://"}), "order:{path.1}", middleware.Rule{KeyHeader: "Redlock-Key"})
	for _, c := range []struct {
		request *http.Request
		want    int
	}{
		{&http.Request{}, http.StatusBadRequest},
		{&http.Request{URL: &url.URL{Path: "/orders/42"}}, http.StatusOK},
	} {
		w := httptest.NewRecorder()
		middleware.Guard(lock(http.HandlerFunc(ok))).ServeHTTP(w, c.request)
		if w.Code != c.want {
			t.Errorf("guarded, %v: %d", c.request.URL, w.Code)
		}
		w = httptest.NewRecorder()
		if lock(http.HandlerFunc(ok)).ServeHTTP(w, c.request); w.Code != c.want {
			t.Errorf("%v: %d", c.request.URL, w.Code)
		}
	}
}

// The limit of another handler isn't ours.
func TestBodyThatTheServerCuts(t *testing.T) {
	t.Parallel()
	lock := middleware.New(newLocker(t, []string{"memory://"}), "order:{json.id}", middleware.Rule{})
	w := httptest.NewRecorder()
	http.MaxBytesHandler(lock(http.HandlerFunc(ok)), 10).ServeHTTP(w, withBody(jsonType, `{"id":1,"x":"0123456789"}`))
	if w.Code != http.StatusRequestEntityTooLarge || strings.Contains(w.Body.String(), "max_body") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
