package middleware_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestHoldAfterAbort: after a handler that broke off, the key stays locked for the time that is set, and then goes to the next
// request; after all others it is free as soon as they have answered.
func TestHoldAfterAbort(t *testing.T) {
	t.Parallel()
	atWork := make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begins" {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "paying")
			panic(http.ErrAbortHandler)
		}
		<-atWork // although the proxy has given up
	}))
	t.Cleanup(upstream.Close)
	t.Cleanup(func() { close(atWork) })
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(address) },
		Transport:    &http.Transport{ResponseHeaderTimeout: 200 * time.Millisecond, DisableKeepAlives: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	leaves := make(chan bool)
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		path    string
		broken  bool
		rule    middleware.Rule
		client  time.Duration // then it leaves; 0 for never
	}{
		"the proxy gives up":                    {handler: proxy.ServeHTTP, broken: true},
		"the proxy gives up, and runs to end":   {handler: proxy.ServeHTTP, broken: true, rule: middleware.Rule{OnClientAbort: "run"}},
		"the upstream breaks off in the middle": {handler: proxy.ServeHTTP, path: "/begins", broken: true},
		"the client leaves":                     {handler: func(_ http.ResponseWriter, r *http.Request) { <-leaves; <-r.Context().Done() }, broken: true, client: time.Millisecond, rule: middleware.Rule{OnClientAbort: middleware.Cancel}},
		"it is done":                            {handler: status(http.StatusOK)},
		"nothing is found":                      {handler: status(http.StatusNotFound)},
		"it fails by itself":                    {handler: status(http.StatusInternalServerError)},
	} {
		t.Run(name, func(t *testing.T) {
			request := func(hold time.Duration) (*redlock.Locker, *time.Time) {
				l := newLocker(t, live)
				over := new(time.Time)
				returned := make(chan bool)
				rule := c.rule
				rule.HoldAfterAbort = hold
				server := serve(t, middleware.New(l, "order:{header.Order}", rule)(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						defer close(returned)
						defer func() { *over = time.Now() }()
						c.handler(w, r)
					})))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.client > 0 {
					go func() { leaves <- true; cancel() }()
				}
				if response, err := http.DefaultClient.Do(newRequest(t, server.URL+c.path, "Order", "42").WithContext(ctx)); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
				receive(t, returned, "the end of the handler")
				return l, over
			}
			l, _ := request(time.Minute)
			lock, err := l.TryLock(t.Context(), "order:42")
			if held := errors.Is(err, redlock.ErrHeld); held != c.broken || !held && err != nil {
				t.Errorf("the next one: %v, want it to be held: %v", err, c.broken)
			}
			if lock != nil {
				_ = lock.Unlock()
			}
			const hold = 300 * time.Millisecond
			l, over := request(hold)
			requireFree(t, l, "order:42")
			if after := time.Since(*over); c.broken && after < hold {
				t.Errorf("free after %v", after)
			}
		})
	}
}
