package middleware_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const customer = "customer:cus_NffrFeUfNV2Hib"

func charge(h http.Handler) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/customers/cus_NffrFeUfNV2Hib/charge", nil))
	return w.Code
}

// TestSpellingElsewhere: a job that locks an ID as it is written, and a rule that reads it, exclude each other, whichever was first.
func TestSpellingElsewhere(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	rule := middleware.New(l, "customer:{path.1:id}", middleware.Rule{})
	lock, err := l.TryLock(t.Context(), customer)
	if err != nil {
		t.Fatal(err)
	}
	if code := charge(rule(http.HandlerFunc(ok))); code != http.StatusLocked {
		t.Errorf("the job holds it: %d, want 423", code)
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if code := charge(rule(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := l.TryLock(t.Context(), customer); err == nil {
			t.Error("a job and a request hold it at once")
		}
		ok(w, r)
	}))); code != http.StatusOK {
		t.Errorf("it is free: %d", code)
	}
}

// TestSpellingOfARuleAround: a rule whose key has the same lock as that of a rule around it is served under that lock. The smaller concurrency of two
// spellings counts. A dry run tells what the locks would say.
func TestSpellingOfARuleAround(t *testing.T) {
	l := newLocker(t, []string{"memory://"})
	inner := middleware.New(l, "Customer:{path.1:id}", middleware.Rule{})
	outer := middleware.New(l, "customer:{path.1:id}", middleware.Rule{Keys: []string{"CUSTOMER:{path.1:id}"}, Concurrency: []int{2, 1}})
	if code := charge(outer(inner(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := l.TryLock(t.Context(), customer); err == nil {
			t.Error("another holds it, too")
		}
		ok(w, r)
	})))); code != http.StatusOK {
		t.Errorf("a rule within a rule: %d", code)
	}
	var log strings.Builder
	byHeader := func(r *http.Request) (string, error) { return r.Header.Get("Key"), nil }
	dry := middleware.NewFunc(l, byHeader, middleware.Rule{DryRun: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	serveInside(dry(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		serveInside(dry(http.HandlerFunc(ok)), "Key", "k")
	})), "Key", "K")
	if n := strings.Count(log.String(), "outcome=held"); n != 1 {
		t.Errorf("%d of two requests would have been refused:\n%s", n, log.String())
	}
}
