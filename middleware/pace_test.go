package middleware_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// requireRetryAfter wants whole seconds from least on, and not much more.
func requireRetryAfter(t *testing.T, got answer, least time.Duration) {
	t.Helper()
	seconds, err := strconv.Atoi(got.Header.Get("Retry-After"))
	if after := time.Duration(seconds) * time.Second; err != nil || after < least || after > least+(least+time.Second)/2 {
		t.Errorf("Retry-After %q, want from %v to half as much again", got.Header.Get("Retry-After"), least)
	}
}

// TestPace: once it is known how long requests take, those that are refused come back earlier than at
// the end of the holder's lease, and those that could not be served in time aren't kept waiting.
func TestPace(t *testing.T) {
	const wait, hold = 500 * time.Millisecond, 1500 * time.Millisecond
	l := newLocker(t, live)
	rule := middleware.Rule{Wait: wait}
	template, err := middleware.ParseTemplate("order:{header.Order}", middleware.Placeholder)
	if err != nil {
		t.Fatal(err)
	}
	inside, release := make(chan struct{}, 1), make(chan struct{})
	request := func(h http.HandlerFunc) (refusal *middleware.Refusal) {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Order", "42")
		err := rule.Serve(l, template.Keys, httptest.NewRecorder(), r, func(w http.ResponseWriter, r *http.Request) error {
			h(w, r)
			return nil
		})
		errors.As(err, &refusal)
		return refusal
	}
	blocked := func() (wait func() *middleware.Refusal) {
		done := make(chan *middleware.Refusal)
		go func() {
			done <- request(func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-release })
		}()
		receive(t, inside, "a request that runs")
		return func() *middleware.Refusal { return receive(t, done, "the end of the request") }
	}
	refused := func() *middleware.Refusal {
		t.Helper()
		refusal := request(ok)
		if refusal == nil || !errors.Is(refusal, redlock.ErrHeld) || refusal.Status != http.StatusLocked {
			t.Fatalf("%+v, want a refusal as held", refusal)
		}
		return refusal
	}

	done := blocked()
	first := refused()
	if first.Turn.Waited < wait {
		t.Errorf("refused after %v without knowing how long requests take, want it to wait for %v", first.Turn.Waited, wait)
	}
	if first.RetryAfter <= longTTL/2 {
		t.Errorf("retry after %v, want the rest of the holder's lease", first.RetryAfter)
	}
	time.Sleep(hold - wait)
	release <- struct{}{}
	done()

	done = blocked()
	second := refused()
	if second.Turn.Waited >= wait {
		t.Errorf("waited for %v, although requests take three times as long", second.Turn.Waited)
	}
	if second.RetryAfter < 2*time.Second || second.RetryAfter > longTTL/2 {
		t.Errorf("retry after %v, want about as long as a request takes", second.RetryAfter)
	}
	release <- struct{}{}
	done()

	for range 20 { // what was long ago counts for little
		if refusal := request(ok); refusal != nil {
			t.Fatal(refusal)
		}
	}
	done = blocked()
	if third := refused(); third.Turn.Waited < wait || third.RetryAfter > 2*time.Second {
		t.Errorf("waited for %v, retry after %v: want the whole wait, and a short one", third.Turn.Waited, third.RetryAfter)
	}
	release <- struct{}{}
	done()
}
