package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func orderKey(r *http.Request) (string, error) { return "order:" + r.Header.Get("Order"), nil }

func TestNameOfRule(t *testing.T) {
	t.Parallel()
	long := "order:{body." + strings.Repeat("ä", 100) + "}"
	locker := newLocker(t, live)
	for want, handler := range map[string]func(http.Handler) http.Handler{
		"order:{method}":                middleware.New(locker, "order:{method}", middleware.Rule{}),
		"a:{method} b:{method}":         middleware.New(locker, "a:{method}", middleware.Rule{Keys: []string{"b:{method}"}}),
		"payments of a shop":            middleware.New(locker, "order:{method}", middleware.Rule{Name: "payments of a shop"}),
		"preset github":                 middleware.New(locker, "", middleware.Rule{Preset: "github"}),
		"hook:{method} (preset github)": middleware.New(locker, "hook:{method}", middleware.Rule{Preset: "github"}),
		"hooks":                         middleware.New(locker, "", middleware.Rule{Name: "hooks", Preset: "github"}),
		"middleware_test.orderKey":      middleware.NewFunc(locker, orderKey, middleware.Rule{}),
		"order:{body." + strings.Repeat("ä", 56) + "…": middleware.New(locker, long, middleware.Rule{OnMissingKey: middleware.Pass}),
	} {
		var turn middleware.Turn
		var held []inspect.KeyStatus
		h := handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ = middleware.TurnFromContext(r.Context())
			held = inspect.Keys(locker, "")
		}))
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(httptest.NewRecorder(), r)
		if turn.Rule != want || len(want) > 128 || !utf8.ValidString(turn.Rule) {
			t.Errorf("rule %q (%d bytes), want %q", turn.Rule, len(turn.Rule), want)
		}
		for _, key := range held {
			if key.Label != want {
				t.Errorf("key %q is locked for %q, want %q", key.Key, key.Label, want)
			}
		}
		if len(held) == 0 && turn.Outcome == middleware.OutcomeAcquired {
			t.Errorf("rule %q: its locks are not listed", want)
		}
	}
	if name := middleware.Name(middleware.Rule{Keys: []string{"a\tb", "c\xff"}}); name != "a\ufffdb c\ufffd" {
		t.Errorf("%q shows what can't be printed", name)
	}
}

func TestNameIsChecked(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"orders of Österreich":   "",
		strings.Repeat("a", 128): "",
		strings.Repeat("a", 129): "longer than 128 bytes",
		"a\nb":                   "can't be printed",
		"a\u202eb":               "can't be printed",
		"a\xffb":                 "can't be printed",
		" a":                     "begin or end with a space",
	} {
		err := wrong(middleware.Rule{Name: name})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("name %q: %v, want %q", name, err, want)
		}
	}
}
