package middleware_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// waiting is a rule whose repeats wait.
func waiting(rule middleware.Rule) middleware.Rule {
	rule.Dedupe, rule.Remember, rule.OnDuplicate = "{header.Id}", hour, "wait"
	if rule.Wait == 0 {
		rule.Wait = 3 * bound
	}
	return rule
}

// requireWaiters waits until so many calls wait for a lock.
func requireWaiters(t *testing.T, n int, lockers ...*redlock.Locker) {
	t.Helper()
	eventually(t, "all repeats wait", func() bool {
		waiting := 0
		for _, l := range lockers {
			waiting += l.Status().Waiting
		}
		return waiting == n
	})
}

// Repeats that come while the first runs, in its process and in another, get its response.
func TestRepeatsWait(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	const repeats = 100
	running, end := make(chan bool, repeats), make(chan bool)
	c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-end
		receipt(w, r)
	}}
	var lockers []*redlock.Locker
	var urls []string
	for range 2 {
		l := newLocker(t, redistest.URLs(servers), redlock.WithRestartGuard(0))
		lockers = append(lockers, l)
		urls = append(urls, serve(t, orders(l, c.ServeHTTP, waiting(middleware.Rule{}))).URL)
	}
	pay := func(url string) received {
		r := newRequest(t, url, "Order", "42", "Id", "a")
		r.Host = "shop.example.com"
		return do(t, r)
	}
	responses := make(chan received, repeats+1)
	var clients sync.WaitGroup
	clients.Go(func() { responses <- pay(urls[0]) })
	receive(t, running, "the first")
	for i := range repeats {
		clients.Go(func() { responses <- pay(urls[i%2]) })
	}
	requireWaiters(t, repeats, lockers...)
	close(end)
	clients.Wait()
	close(responses)
	var first received
	replayed := 0
	for got := range responses {
		if first.Response == nil {
			first = got
		}
		if got.Header.Get("Idempotency-Replayed") == "true" {
			replayed++
		}
		if got.StatusCode != http.StatusCreated || got.body != first.body {
			t.Errorf("%d %s, want %s", got.StatusCode, got.body, first.body)
		}
	}
	if replayed != repeats {
		t.Errorf("%d replays, want %d", replayed, repeats)
	}
	c.requireRuns(t, 1)
}

// If the first fails, one of those that wait runs, and the others get its response.
func TestRepeatsWaitForOneThatFails(t *testing.T) {
	t.Parallel()
	const repeats = 20
	running, end := make(chan bool, repeats), make(chan bool)
	c := &cashier{}
	c.answer = func(w http.ResponseWriter, r *http.Request) {
		if c.runs.Load() == 1 {
			running <- true
			<-end
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		receipt(w, r)
	}
	l := newLocker(t, live)
	server := serve(t, orders(l, c.ServeHTTP, waiting(middleware.Rule{})))
	statuses := make(chan int, repeats+1)
	bodies := make(chan string, repeats+1)
	var clients sync.WaitGroup
	pay := func() {
		got := post(t, server.URL, "Order", "42", "Id", "a")
		statuses <- got.StatusCode
		bodies <- got.body
	}
	clients.Go(pay)
	receive(t, running, "the first")
	for range repeats {
		clients.Go(pay)
	}
	requireWaiters(t, repeats, l)
	close(end)
	clients.Wait()
	close(bodies)
	different := make(map[string]bool)
	for body := range bodies {
		different[body] = true
	}
	if len(different) != 2 { // that of the 503, which is empty, and the receipt
		t.Errorf("%d different responses", len(different))
	}
	c.requireRuns(t, 2)
}

// A repeat waits for no longer than its rule allows, and leaves with its client and before an exit; none that has left keeps others out.
func TestRepeatsThatStopWaiting(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	running, end := make(chan bool, 1), make(chan bool)
	c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-end
		receipt(w, r)
	}}
	stopping, stop := context.WithCancel(t.Context())
	defer stop()
	long := serve(t, orders(l, c.ServeHTTP, waiting(middleware.Rule{Shutdown: stopping})))
	short := serve(t, orders(l, c.ServeHTTP, waiting(middleware.Rule{Wait: 10 * time.Millisecond})))
	one := serve(t, orders(l, c.ServeHTTP, waiting(middleware.Rule{MaxWaiters: 1})))
	pay := func(ctx context.Context, url string) (received, error) {
		r := newRequest(t, url, "Order", "42", "Id", "a").WithContext(ctx)
		r.Host = "shop.example.com"
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return received{}, err
		}
		_ = resp.Body.Close()
		return received{Response: resp}, nil
	}
	first := make(chan received, 1)
	go func() { a, _ := pay(t.Context(), long.URL); first <- a }()
	receive(t, running, "the first")
	if got, err := pay(t.Context(), short.URL); err != nil || got.Header.Get("Redlock-Outcome") != "duplicate" || got.Header.Get("Retry-After") == "" {
		t.Errorf("when the wait is over: %v, %v", got.Response, err)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { _, err := pay(ctx, long.URL); left <- err }()
	requireWaiters(t, 1, l)
	if got, err := pay(t.Context(), one.URL); err != nil || got.Header.Get("Redlock-Outcome") != "too_many_waiters" {
		t.Errorf("one too many: %v, %v", got.Response, err)
	}
	leave()
	receive(t, left, "the client that leaves")
	requireWaiters(t, 0, l)
	stopped := make(chan received, 1)
	go func() { a, _ := pay(t.Context(), long.URL); stopped <- a }()
	requireWaiters(t, 1, l)
	stop()
	if got := receive(t, stopped, "the one that waits at the exit"); got.StatusCode != http.StatusServiceUnavailable || got.Header.Get("Redlock-Outcome") != "stopping" {
		t.Errorf("before an exit: %v", got.Response)
	}
	close(end)
	if got := receive(t, first, "the response"); got.StatusCode != http.StatusCreated {
		t.Errorf("%v", got.Response)
	}
	c.requireRuns(t, 1)
}

func TestWrongOnDuplicate(t *testing.T) {
	t.Parallel()
	for _, rule := range []middleware.Rule{
		{OnDuplicate: "wait"}, {OnDuplicate: "wait", Dedupe: "{header.Id}", Wait: time.Second}, {OnDuplicate: "wait", Dedupe: "{header.Id}", Remember: hour},
		{OnDuplicate: "later", Dedupe: "{header.Id}", Remember: hour, Wait: time.Second},
	} {
		if err := wrong(rule); err == nil || !strings.HasPrefix(err.Error(), "on_duplicate") {
			t.Errorf("%+v: %v", rule, err)
		}
	}
	if err := wrong(waiting(middleware.Rule{})); err != nil {
		t.Error(err)
	}
}
