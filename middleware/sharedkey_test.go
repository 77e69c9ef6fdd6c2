package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A rule writes values in one spelling; others, such as redlock run, lock the text that they are given: docs/keys.md says what to write.
func TestKeyOfAnother(t *testing.T) {
	t.Parallel()
	locker := newLocker(t, live)
	handler := middleware.New(locker, "Order:{header.X}", middleware.Rule{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for key, status := range map[string]int{"Order:A/7": http.StatusOK, "Order:a%2F7": http.StatusLocked, "order:a%2F7": http.StatusLocked} {
		lock, err := locker.Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		r, w := httptest.NewRequest("POST", "/", http.NoBody), httptest.NewRecorder()
		r.Header.Set("X", "A/7")
		handler.ServeHTTP(w, r)
		if w.Code != status {
			t.Errorf("while %s is held: %d, want %d", key, w.Code, status)
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}
