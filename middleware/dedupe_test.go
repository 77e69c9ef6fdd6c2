package middleware_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// "dedupe on" is a natural guess, and would make duplicates of all deliveries with one key.
func TestConstantDedupe(t *testing.T) {
	t.Parallel()
	if err := wrong(middleware.Rule{Dedupe: "on"}); err == nil || !strings.Contains(err.Error(), `"on" is the same for all deliveries`) {
		t.Error(err)
	}
}

// A second delivery is answered at once while the first runs, or waits for its key, in any process.
func TestDuplicateDeliveries(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	running, end := make(chan bool, 10), make(chan bool)
	release := sync.OnceFunc(func() { close(end) })
	handler := func() http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			running <- true
			<-end
			ok(w, r)
		}
	}
	opts := middleware.Rule{Wait: bound, Dedupe: "{header.Id}"}
	server := serve(t, orders(l, handler(), opts))
	other := serve(t, orders(l, handler(), opts)) // another rule
	t.Cleanup(release)
	responses := make(chan received, 10)
	send := func(headers ...string) { go func() { responses <- post(t, server.URL, headers...) }() }

	send("Order", "42", "Id", "a")
	receive(t, running, "the first")
	duplicate := func(url, order, id string) {
		t.Helper()
		start := time.Now()
		got := post(t, url, "Order", order, "Id", id)
		requireProblem(t, got, http.StatusConflict, "duplicate")
		requireRetryAfter(t, got, time.Second) // how long requests take is not known yet; it is not the lease
		if time.Since(start) > bound/2 {
			t.Errorf("after %v", time.Since(start))
		}
	}
	duplicate(server.URL, "42", "a")
	duplicate(other.URL, "42", "a")

	send("Order", "42", "Id", "b") // waits
	send("Order", "42", "Id", "b") // one of the two waits, the other is refused
	requireProblem(t, receive(t, responses, "the response to the second"), http.StatusConflict, "duplicate")
	duplicate(server.URL, "42", "b")
	send("Order", "42") // requests without an ID wait, however many there are
	send("Order", "42")
	requireProblem(t, post(t, server.URL, "Order", "42", "Id", "b", "Id", "c"), http.StatusBadRequest, "bad_key")
	send("Order", "43", "Id", "a") // another key
	receive(t, running, "the other key")

	release()
	for range 5 {
		if got := receive(t, responses, "a response"); got.body != "served" {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	}
	if got := post(t, server.URL, "Order", "42", "Id", "a"); got.body != "served" { // finished deliveries are not remembered
		t.Errorf("after the first is done: %d %s", got.StatusCode, got.body)
	}
}

// A sender that delivers one event to two endpoints gives both deliveries its ID: they wait for each other, and both are served.
func TestOneEventForTwoEndpoints(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	running, end := make(chan bool, 1), make(chan bool)
	release := sync.OnceFunc(func() { close(end) })
	mux := http.NewServeMux()
	mux.Handle("/billing", middleware.New(l, "", middleware.Rule{Preset: "stripe", Wait: bound})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running <- true
		<-end
		ok(w, r)
	})))
	mux.Handle("/crm", middleware.New(l, "", middleware.Rule{Preset: "stripe", Wait: bound})(http.HandlerFunc(ok)))
	server := serve(t, mux)
	t.Cleanup(release)
	responses := make(chan received, 2)
	send := func(path string) {
		go func() {
			responses <- postBody(t, server.URL+path, jsonType, strings.NewReader(`{"id":"evt_1","data":{"object":{"object":"customer","id":"cus_1"}}}`))
		}()
	}
	send("/billing")
	receive(t, running, "the first")
	send("/crm")
	requireWaiting(t, l)
	requireProblem(t, postBody(t, server.URL+"/crm", jsonType, strings.NewReader(`{"id":"evt_1","data":{"object":{"object":"customer","id":"cus_1"}}}`)), http.StatusConflict, "duplicate")
	release()
	for range 2 {
		if got := receive(t, responses, "a response"); got.body != "served" {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	}
}

func TestDedupeWithoutQuorum(t *testing.T) {
	t.Parallel()
	server := serve(t, orders(newLocker(t, dead), ok, middleware.Rule{Dedupe: "{header.Id}"}))
	requireProblem(t, post(t, server.URL, "Order", "42", "Id", "a"), http.StatusConflict, "no_quorum")
}

// A delivery is known for as long as its request may hold the key, even if the Locker decides how long, and no longer if the
// request is stuck.
func TestDuplicateOfALongRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, live, redlock.WithMaxHold(time.Hour))
		end := make(chan bool)
		handler := orders(l, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Block") != "" {
				<-end
			}
			ok(w, r)
		}, middleware.Rule{Dedupe: "{header.Id}"})
		deliver := func(block string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Block", block)
			r.Header.Set("Order", "42")
			r.Header.Set("Id", "a")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		done := make(chan bool)
		go func() {
			defer close(done)
			deliver("1")
		}()
		time.Sleep(50 * time.Minute)
		if w := deliver(""); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "#duplicate") {
			t.Errorf("while the first runs: %d %s", w.Code, w.Body)
		}
		time.Sleep(20 * time.Minute)
		if w := deliver(""); w.Code != http.StatusOK {
			t.Errorf("when the first has lost its lock: %d %s", w.Code, w.Body)
		}
		close(end)
		<-done
	})
}

func TestDedupeOfSeveralValues(t *testing.T) {
	t.Parallel()
	err := wrong(middleware.Rule{Dedupe: "{header.X}:{body.items[].id}"})
	if err == nil || !strings.Contains(err.Error(), "dedupe: {body.items[].id} may have several values") {
		t.Error(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("New takes it")
		}
	}()
	middleware.Explain("k", httptest.NewRequest(http.MethodPost, "/", nil), middleware.Rule{Dedupe: "{body.items[].id}"})
}

// TestDeliveryKey: a delivery has one key, whatever the order of its keys, and no other delivery has it.
func TestDeliveryKey(t *testing.T) {
	t.Parallel()
	of := func(keys []string, parts ...string) middleware.Delivery {
		parts = append(parts, "", "", "", "")
		return middleware.Delivery{Keys: keys, ID: parts[0], Place: parts[1], Signer: parts[2], Scope: parts[3]}
	}
	deliveries := []middleware.Delivery{
		of(nil, "a"), of(nil, "", "", "", "a"), of(nil, "", "", "a"), of([]string{"a"}),
		of([]string{"a"}, "b", "", "", "c"), of([]string{"a"}, "b", "", "c"), of([]string{"a"}, "bc"), of([]string{"a", "b"}, "c"), of([]string{"ab"}, "c"),
		of([]string{"a\x00b"}, "c"), of([]string{"a"}, "b\x00c"), of([]string{"a"}, "\x01b", "", "", "c"), of([]string{"a\x01b"}, "", "", "", "c"),
		of([]string{"a", "a"}, "c"), of([]string{strings.Repeat("a", 200)}, "c"), of([]string{strings.Repeat("a", 199)}, "ac"),
		of(nil, "a", "POST /p"), of(nil, "a", "PUT /p"), of(nil, "a", "POST /p?q"), of(nil, "a", "POST /p?Q"), of(nil, "a", "POST /h/p"), of(nil, "a", "POST /p", "s"),
		{ID: "a", Host: "h"}, {ID: "a", Host: "g"}, {ID: "a", Site: "h"}, {ID: "a", Host: "h", Place: "POST /p"}, {ID: "a", Host: "g", Place: "POST /p"},
	}
	seen := make(map[string]int)
	for i, d := range deliveries {
		key := d.Key()
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the same key", deliveries[other], d)
		}
		seen[key] = i
		if text := d.ID + d.Signer + d.Scope; strings.Contains(key, text) && len(text) > 2 {
			t.Errorf("the key of %q shows it", d)
		}
	}
	if of([]string{"x", "b", "a"}, "1").Key() != of([]string{"a", "b", "x"}, "1").Key() {
		t.Error("the order of the keys changes the key")
	}
}
