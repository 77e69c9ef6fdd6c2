package locked

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

func TestLocked(t *testing.T) {
	locker := redlocktest.New(t)
	app := http.NewServeMux()
	app.HandleFunc("/orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		if !Locked(r, r.PathValue("id")) {
			http.Error(w, "not locked", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, "paid "+r.PathValue("id"))
	})
	gateway := middleware.New(locker, "order:{path.1:int}", middleware.Rule{KeyHeader: "Redlock-Key"})(app)

	const token, key = "Fencing-Token", "Redlock-Key"
	for _, test := range []struct {
		name    string
		server  http.Handler
		headers map[string]string
		status  int
	}{
		{"what is locked", gateway, nil, http.StatusOK},
		{"neither", app, nil, http.StatusBadRequest},
		{"no token", app, map[string]string{key: `{"path.1":["42"]}`}, http.StatusBadRequest},
		{"no key", app, map[string]string{token: "1"}, http.StatusBadRequest},
		{"another key", app, map[string]string{token: "1", key: `{"path.1":["43"]}`}, http.StatusBadRequest},
		{"another place", app, map[string]string{token: "1", key: `{"path.2":["42"]}`}, http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil)
		for name, value := range test.headers {
			r.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		test.server.ServeHTTP(w, r)
		if w.Code != test.status || w.Code == http.StatusOK && w.Body.String() != "paid 42" {
			t.Errorf("%s: %d %s", test.name, w.Code, w.Body)
		}
	}
}
