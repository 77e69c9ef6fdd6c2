package middleware_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`"8e03978e-40d5"`: "8e03978e-40d5", `8e03978e-40d5`: "8e03978e-40d5", `"a\"b\\c"`: `a"b\c`, `"a";v=1`: "a", ` "a" `: "a", `a=b:/+`: "a=b:/+",
		strings.Repeat("x", 255): strings.Repeat("x", 255),
	} {
		r, _ := http.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", strings.TrimSpace(header))
		if got, err := middleware.IdempotencyKey(r); got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", header, got, err, want)
		}
	}
	for _, header := range []string{`""`, `"a`, `a"`, `a,b`, `"a", "b"`, `"a" "b"`, `a;v=1`, "a b", "é", `"é"`, "a\x7f", strings.Repeat("x", 256), `"` + strings.Repeat("x", 256) + `"`} {
		r, _ := http.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Idempotency-Key", header)
		if got, err := middleware.IdempotencyKey(r); err == nil {
			t.Errorf("%s: %q, want an error", header, got)
		}
	}
}

// PHP reads Idempotency_Key as Idempotency-Key: with both it takes either, and with the one alone it has an ID that nobody compares.
func TestIdempotencyKeyInOtherSpellings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header, trailer http.Header
	}{
		{http.Header{"Idempotency-Key": {"a"}, "Idempotency_Key": {"b"}}, nil},
		{http.Header{"Idempotency_key": {"b"}}, nil},
		{http.Header{"Idempotency-Key": {"a"}}, http.Header{"Idempotency-Key": nil}},
		{http.Header{"Idempotency-Key": {"a", "a"}}, nil},
	} {
		r, _ := http.NewRequest(http.MethodPost, "/", nil)
		r.Header, r.Trailer = c.header, c.trailer
		if got, err := middleware.IdempotencyKey(r); !errors.Is(err, middleware.ErrAmbiguousKey) {
			t.Errorf("%v, trailers %v: %q, %v; want %v", c.header, c.trailer, got, err, middleware.ErrAmbiguousKey)
		}
	}
}

// Without a template of its own, a rule locks the ID alone.
func TestIdempotencyKeyAlone(t *testing.T) {
	t.Parallel()
	running, end := make(chan bool, 2), make(chan bool)
	c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Slow") != "" {
			running <- true
			<-end
		}
		turn, _ := middleware.TurnFromContext(r.Context())
		if fence := r.Header.Get("Fencing-Token"); (fence != "") != (r.Header.Get("Idempotency-Key") != "") || (turn.Key != "") != (fence != "") {
			t.Errorf("fence %q, key %q", fence, turn.Key)
		}
		receipt(w, r)
	}}
	l := newLocker(t, live)
	required := serve(t, middleware.New(l, "", middleware.Rule{Preset: "idempotency-key"})(c)).URL
	optional := serve(t, middleware.New(l, "", middleware.Rule{IdempotencyKey: "optional", Remember: hour})(c)).URL

	who := []string{"Authorization", "Bearer x"}
	first := post(t, required, append(who, "Idempotency-Key", `"a"`)...)
	requireReplay(t, post(t, required, append(who, "Idempotency-Key", "a")...), first)
	requireProblem(t, post(t, required, who...), http.StatusBadRequest, "missing_id")
	requireProblem(t, post(t, required, "Idempotency-Key", "a"), http.StatusUnauthorized, "missing_scope") // nobody to compare it for
	requireProblem(t, post(t, required, append(who, "Idempotency-Key", "a,b")...), http.StatusBadRequest, "bad_key")
	requireProblem(t, post(t, required, append(who, "Idempotency-Key", "a", "Idempotency-Key", "b")...), http.StatusBadRequest, "bad_key")
	c.requireRuns(t, 1)

	for range 2 {
		if got := post(t, optional); got.StatusCode != http.StatusCreated || got.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("without an ID: %d", got.StatusCode)
		}
	}

	slow := make(chan received, 1)
	go func() { slow <- post(t, optional, "Idempotency-Key", "c", "Slow", "1") }()
	receive(t, running, "the slow one")
	requireProblem(t, post(t, optional, "Idempotency-Key", "c"), http.StatusConflict, "duplicate")
	if got := post(t, optional, "Idempotency-Key", "d"); got.StatusCode != http.StatusCreated {
		t.Errorf("another ID: %d", got.StatusCode)
	}
	close(end)
	first = receive(t, slow, "the response")
	requireReplay(t, post(t, optional, "Idempotency-Key", "c"), first)
}
