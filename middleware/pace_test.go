package middleware_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// requireRetryAfter checks that Retry-After is at least least, in whole seconds, and not much more.
func requireRetryAfter(t *testing.T, got received, least time.Duration) {
	t.Helper()
	seconds, err := strconv.Atoi(got.Header.Get("Retry-After"))
	if after := time.Duration(seconds) * time.Second; err != nil || after < least || after > least+(least+time.Second)/2 {
		t.Errorf("Retry-After %q, want from %v to half as much again", got.Header.Get("Retry-After"), least)
	}
}

// How long others took doesn't decide whether a request is refused before its wait is over: a request that can be served is
// served. It decides Retry-After, once enough is known.
func TestPace(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := net.Locker(t)
		const slow = 1500 * time.Millisecond
		rule := middleware.CompileFunc(middleware.Rule{Wait: slow / 2}, orderOf)
		request := func(order string, wait time.Duration, h http.HandlerFunc) (refusal middleware.Refusal) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Order", order)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			err := rule.Serve(l, httptest.NewRecorder(), r.WithContext(ctx), func(w http.ResponseWriter, r *http.Request) error {
				h(w, r)
				return nil
			})
			errors.As(err, &refusal)
			return refusal
		}

		var slowOnes sync.WaitGroup
		for i := range 20 { // much longer than the others can wait
			slowOnes.Go(func() {
				request("slow"+strconv.Itoa(i), bound, func(http.ResponseWriter, *http.Request) { time.Sleep(slow) })
			})
		}
		slowOnes.Wait()
		var line sync.WaitGroup
		for range 20 {
			line.Go(func() {
				if refusal := request("42", bound, ok); refusal != nil {
					t.Errorf("a request was refused: %v", refusal)
				}
			})
		}
		line.Wait()
	})
}

// Retry-After is the median of the last requests: a few of them, or an occasional slow one, are not typical of the others.
func TestRetryAfter(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := net.Locker(t)
		rule := middleware.CompileFunc(middleware.Rule{}, orderOf)
		request := func(order string, h func()) (refusal middleware.Refusal) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Order", order)
			errors.As(rule.Serve(l, httptest.NewRecorder(), r, func(http.ResponseWriter, *http.Request) error {
				h()
				return nil
			}), &refusal)
			return refusal
		}
		retryAfter := func() (refusal middleware.Refusal) {
			t.Helper()
			request("42", func() { refusal = request("42", func() { t.Error("two at once") }) })
			if refusal == nil || !errors.Is(refusal, redlock.ErrHeld) || refusal.Status() != http.StatusLocked {
				t.Fatalf("%+v, want a refusal as held", refusal)
			}
			return refusal
		}
		slowly := func(n int) {
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() { request("slow"+strconv.Itoa(i), func() { time.Sleep(2500 * time.Millisecond) }) })
			}
			all.Wait()
		}
		if after := middleware.RetryAfter(retryAfter()); after > 2*time.Second {
			t.Errorf("%v before anything is known", after)
		}
		slowly(4)
		if after := middleware.RetryAfter(retryAfter()); after > 2*time.Second {
			t.Errorf("%v after 4 slow requests", after)
		}
		slowly(16)
		if after := middleware.RetryAfter(retryAfter()); after < 3*time.Second || after > 5*time.Second {
			t.Errorf("%v after 16 requests of 2.5 s, want from 3 s to half as much again", after)
		}
		for i := range 16 {
			request("quick"+strconv.Itoa(i), func() {})
		}
		if after := middleware.RetryAfter(retryAfter()); after > 2*time.Second {
			t.Errorf("%v after 16 quick ones", after)
		}
	})
}

func orderOf(r *http.Request) (string, error) { return "order:" + r.Header.Get("Order"), nil }
