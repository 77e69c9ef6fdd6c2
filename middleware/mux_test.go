package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A route that may change something isn't registered unless somebody has decided whether it needs a lock.
func TestMux(t *testing.T) {
	t.Parallel()
	rule := middleware.New(newLocker(t, live), "order:{path}", middleware.Rule{})
	plain := http.HandlerFunc(served)
	logged := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r) })
	}
	for _, c := range []struct {
		pattern string
		handler http.Handler
		ok      bool
	}{
		{"POST /a", plain, false}, {"/a", plain, false}, {"shop.example/a", plain, false}, {"DELETE /a", plain, false}, {"QUERY /a", plain, false}, {"POST\t/a", plain, false}, {" /a", plain, false}, {"\t/a", plain, false},
		{"GET /a", plain, true}, {"HEAD /a", plain, true}, {"OPTIONS /a", plain, true},
		{"POST /a", rule(plain), true}, {"/a", middleware.Require(plain), true}, {"POST /a", middleware.Unlocked(plain), true},
		{"POST /a", rule(logged(plain)), true}, {"POST /a", logged(rule(plain)), false},
	} {
		mux := new(middleware.Mux)
		said := func() (said any) {
			defer func() { said = recover() }()
			mux.Handle(c.pattern, c.handler)
			return nil
		}()
		if text, _ := said.(string); (said == nil) != c.ok || said != nil && !strings.Contains(text, "the pattern "+c.pattern+" may change something") {
			t.Errorf("%s: %v, want %t", c.pattern, said, c.ok)
		}
	}
	mux := new(middleware.Mux)
	mux.HandleFunc("GET /a", served)
	mux.Handle("POST /a", rule(plain))
	for _, method := range []string{"GET", "HEAD", "POST"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, "/a", nil))
		if w.Code != http.StatusAccepted {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
}
