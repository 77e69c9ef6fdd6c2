package middleware_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/verdicts"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

// TestVerdicts: the responses to requests that don't get their lock, even if that is so at a deadline of a handler around the rule.
func TestVerdicts(t *testing.T) {
	late, end := context.WithDeadline(t.Context(), time.Now())
	defer end()
	for _, v := range verdicts.All {
		for cause, ctx := range map[error]context.Context{nil: t.Context(), context.DeadlineExceeded: late} {
			refusal := middleware.RefusalOf(ctx, v.Err(cause))
			if refusal.Status() != v.Status || string(refusal.Turn().Outcome) != v.Outcome || middleware.RetryAfter(refusal) == 0 {
				t.Errorf("%s, %v: %d %s, again after %v; want %d %s", v.Seen, cause, refusal.Status(), refusal.Turn().Outcome, middleware.RetryAfter(refusal), v.Status, v.Outcome)
			}
		}
	}
}

// TestDetailWithoutSubscribe: who could not wait isn't told that the whole wait was over.
func TestDetailWithoutSubscribe(t *testing.T) {
	refusal := middleware.RefusalOf(t.Context(), &redlock.HeldError{Err: redlock.ErrNotWoken})
	if turn := refusal.Turn(); turn.Outcome != middleware.OutcomeHeld || !strings.Contains(turn.Detail, "SUBSCRIBE") {
		t.Errorf("%s: %s", turn.Outcome, turn.Detail)
	}
}

// TestPassesNoRequestThatIsOver: what a deadline has ended isn't served without its lock.
func TestPassesNoRequestThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var master redlocktest.Master
		locker := master.Locker(t)
		master.SetAvailable(false)
		rule := middleware.Rule{OnNoQuorum: middleware.Pass, Wait: time.Minute, MastersWait: time.Minute}
		h := middleware.New(locker, "key", rule)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("served") }))
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)); w.Code != http.StatusConflict {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestServedAfterRefusal: a request that one rule has refused, and another one in an error route serves, doesn't look like a refused one. A client
// repeats what it takes for refused.
func TestServedAfterRefusal(t *testing.T) {
	locker := redlocktest.New(t)
	for name, rule := range map[string]middleware.Rule{
		"served":   {Keys: []string{"key"}},
		"passed":   {Keys: []string{"{header.Missing}"}, OnMissingKey: middleware.Pass},
		"replayed": {Keys: []string{"key"}, Dedupe: "{header.Id}", Remember: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			h := middleware.New(locker, "", rule)(http.HandlerFunc(
				func(w http.ResponseWriter, _ *http.Request) { w.Header().Add("Cache-Control", "private") }))
			for range 2 {
				w := httptest.NewRecorder()
				middleware.RefusalOf(t.Context(), &redlock.HeldError{Err: redlock.ErrHeld}).SetHeaders(w.Header())
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
				r.Header.Set("Id", name)
				h.ServeHTTP(w, r)
				if got := w.Header(); got.Get("Redlock-Outcome") != "" || got.Get("Retry-After") != "" || got.Get("Cache-Control") != "private" {
					t.Errorf("%d %v", w.Code, got)
				}
			}
		})
	}
}
