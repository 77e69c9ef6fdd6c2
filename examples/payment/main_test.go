package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

func post(t *testing.T, url string) int {
	t.Helper()
	resp, err := http.Post(url, "", nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// No route that may change something is forgotten.
func TestEachRouteIsLocked(t *testing.T) {
	locker := redlocktest.New(t)
	routes := newHandler(locker, answer(""), answer("")).(chi.Routes)
	err := chi.Walk(routes, func(method, route string, handler http.Handler, around ...func(http.Handler) http.Handler) error {
		isLock := func(m func(http.Handler) http.Handler) bool { return middleware.Decided(m(handler)) }
		if method != http.MethodGet && !middleware.Decided(handler) && !slices.ContainsFunc(around, isLock) {
			t.Errorf("%s %s: no rule locks it", method, route)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestOnePaymentOfAnOrderAtATime(t *testing.T) {
	locker := redlocktest.New(t)

	started, finish := make(chan string, 4), make(chan struct{})
	slow := func(_ http.ResponseWriter, r *http.Request) {
		started <- r.PathValue("id")
		<-finish
	}
	refunded := make(chan bool, 1)
	refund := func(http.ResponseWriter, *http.Request) { refunded <- true }
	server := httptest.NewServer(newHandler(locker, slow, refund))
	defer server.Close()

	first, other, second := make(chan int, 1), make(chan int, 1), make(chan int, 1)
	go func() { first <- post(t, server.URL+"/orders/42/pay") }()
	if id := <-started; id != "42" {
		t.Errorf("chi's parameter id is %q by PathValue, want 42", id)
	}
	if status := post(t, server.URL+"/orders/42/pay"); status != http.StatusLocked {
		t.Errorf("same order meanwhile: status %d, want 423", status)
	}
	go func() { other <- post(t, server.URL+"/orders/43/pay") }()
	<-started // another order is paid beside it
	go func() { second <- post(t, server.URL+"/orders/42/refund") }()
	select {
	case <-refunded:
		t.Error("a refund did not wait for the payment of its order")
	case <-time.After(50 * time.Millisecond):
	}
	close(finish)
	if a, b, c := <-first, <-other, <-second; a != http.StatusOK || b != http.StatusOK || c != http.StatusOK {
		t.Errorf("status %d, %d and %d, want 200 for all", a, b, c)
	}
}
