package plugintest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/keycases"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// testKeyCases looks up, on a master, the key that each request of the table locks.
func testKeyCases(t *testing.T, load func(testing.TB) New) {
	servers := redistest.Start(t, 1)
	new := load(t)
	for i, c := range keycases.All() {
		got := ""
		h := handler(t, new, with(servers, "key", c.Template, "wait", "10s"), func(http.ResponseWriter, *http.Request) {
			got = strings.Join(servers[0].Keys(), " ")
		})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, c.Request)
		switch outcome := w.Header().Get("Redlock-Outcome"); {
		case outcome == "missing_key":
			got = keycases.Missing
		case outcome == "bad_key" && strings.Contains(w.Body.String(), "given more than once"):
			got = keycases.Ambiguous
		case outcome == "bad_key":
			got = keycases.Refused
		}
		want := "redlock:{" + c.Want + "}"
		switch {
		case c.Unstable && got == keycases.Ambiguous:
			want = got
		case c.Unstable:
			want = keycases.Refused
		case c.Want[0] == 0:
			want = c.Want
		}
		if got != want {
			t.Errorf("case %d: %q of %s %s with %v: %q, want %q", i, c.Template, c.Request.Host, c.Request.RequestURI, c.Request.Header, got, want)
		}
	}
}
