package middleware_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// newExampleLocker has a master in memory, so that the examples run without a server. In production, use the URLs of three or
// five independent servers.
func newExampleLocker() *redlock.Locker {
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

func Example() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	var mux http.ServeMux
	pay := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		fmt.Println("paying, with the lock on", turn.Key)

		// The same order once more, while this request runs:
		second := httptest.NewRecorder()
		mux.ServeHTTP(second, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
		fmt.Println("second request:", second.Code, second.Body)
	})
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id:int}", middleware.Rule{})(pay))

	first := httptest.NewRecorder()
	mux.ServeHTTP(first, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
	fmt.Println("first request:", first.Code)
	// Output:
	// paying, with the lock on order:42
	// second request: 423 {"type":"https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#held","title":"Another request with the same key is in progress","status":423,"detail":"another request holds the lock"}
	//
	// first request: 200
}

// A function derives the key if a template can't: here from the user whom an earlier handler has found.
func ExampleNewFunc() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	key := func(r *http.Request) (string, error) {
		user, _, found := r.BasicAuth()
		if !found {
			return "", middleware.ErrMissingKey // answered with 400
		}
		return "user:" + user, nil
	}
	serialize := middleware.NewFunc(locker, key, middleware.Rule{Wait: 2 * time.Second})
	handler := serialize(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		fmt.Println(turn.Key)
	}))

	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.SetBasicAuth("alice", "password")
	handler.ServeHTTP(httptest.NewRecorder(), r)

	anonymous := httptest.NewRecorder()
	handler.ServeHTTP(anonymous, httptest.NewRequest(http.MethodPost, "/", nil))
	fmt.Println(anonymous.Code)
	// Output:
	// user:alice
	// 400
}

// Two handlers share the lock on an order. The refund waits until the payment is done.
func ExampleWithWait() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	paying := make(chan struct{})
	pay := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(paying)
		time.Sleep(50 * time.Millisecond) // the work
		fmt.Println("paid")
	})
	refund := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fmt.Println("refunded") })

	serialize := middleware.New(locker, "order:{path.id:int}", middleware.Rule{Wait: time.Minute})
	var mux http.ServeMux
	mux.Handle("POST /orders/{id}/pay", serialize(pay))
	mux.Handle("POST /orders/{id}/refund", serialize(refund))

	var requests sync.WaitGroup
	requests.Go(func() {
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
	})
	<-paying
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/42/refund", nil))
	requests.Wait()
	// Output:
	// paid
	// refunded
}

// The fencing token protects the database from a request that was paused for longer than its lease: its token is smaller than
// that of the request which came after it.
func ExampleTurn_Fence() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	var last uint64 // stands for a column in your database, and the comparison for a WHERE clause
	handler := middleware.New(locker, "order:{header.Order:int}", middleware.Rule{OnMissingKey: middleware.Pass})(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			fence, ok := turn.Fence()
			if !ok {
				fmt.Println("served without a lock:", turn.Outcome)
				return
			}
			fmt.Println("stored, as the token is larger than the last one:", fence > last)
			last = fence
		}))

	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Order", "42")
	handler.ServeHTTP(httptest.NewRecorder(), r.Clone(r.Context()))
	handler.ServeHTTP(httptest.NewRecorder(), r.Clone(r.Context()))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
	// Output:
	// stored, as the token is larger than the last one: true
	// stored, as the token is larger than the last one: true
	// served without a lock: missing_key
}

// Only webhooks that GitHub has signed hold the lock on their repository.
func ExampleRule_verify() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	secret := "It's a Secret to Everybody" // from the environment
	serialize := middleware.New(locker, "", middleware.Rule{
		Preset: "github",
		Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{secret}}},
	})
	handler := serialize(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		fmt.Println("received, with the lock on", turn.Key)
	}))

	const body = `{"repository":{"id":186853002}}`
	signature := hmac.New(sha256.New, []byte(secret))
	signature.Write([]byte(body))
	for _, header := range []string{"sha256=" + hex.EncodeToString(signature.Sum(nil)), "sha256=00"} {
		r := httptest.NewRequest(http.MethodPost, "/webhooks/github", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("X-Hub-Signature-256", header)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// received, with the lock on github:186853002
	// 200
	// 401
}

// An access log that says what became of each request's lock, whether the request was served or refused.
func ExampleNoteTurn() {
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	orders := middleware.New(locker, "order:{header.Order:int}", middleware.Rule{Name: "orders"})
	accessLog := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, turn := middleware.NoteTurn(r.Context())
			next.ServeHTTP(w, r.WithContext(ctx))
			if turn, ok := turn(); ok { // slog.Info("handled request", "redlock", turn) logs all of it
				fmt.Println(turn.Rule, turn.Outcome, turn.Detail)
			}
		})
	}
	handler := accessLog(orders(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))

	r := httptest.NewRequest(http.MethodPost, "/pay", nil)
	handler.ServeHTTP(httptest.NewRecorder(), r)
	r.Header.Set("Order", "42")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	// Output:
	// orders missing_key key part {header.Order:int}: missing or empty
	// orders acquired
}

// A sender that repeats a webhook gets the response of the first delivery, and the handler runs once.
func ExampleRule_remember() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()
	book := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Println("booking")
		_, _ = fmt.Fprint(w, "booked")
	})
	hook := middleware.New(locker, "order:{query.order:int}", middleware.Rule{Dedupe: "{header.Event}", Remember: time.Hour})(book)
	for range 2 {
		r, w := httptest.NewRequest(http.MethodPost, "/hook?order=42", nil), httptest.NewRecorder()
		r.Header.Set("Event", "evt_1")
		hook.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// booking
	// 200 booked
	// 200 booked
}

// Guard stands in front of the router: it refuses what the router and an upstream could read as two different paths or methods.
func ExampleGuard() {
	pay := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "paid") })
	guarded := middleware.Guard(pay)
	for _, target := range []string{"/orders/42/pay", "//orders/42/pay", "/?/orders/42/pay"} {
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, httptest.NewRequest(http.MethodPost, target, nil))
		fmt.Println(target, w.Code)
	}
	// Output:
	// /orders/42/pay 200
	// //orders/42/pay 400
	// /?/orders/42/pay 400
}

// An operator's tool computes the key under which the response to a delivery is remembered, as redlock inspect --id does.
func ExampleDelivery_Key() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()
	webhooks := middleware.New(locker, "charge:{json.charge:id}", middleware.Rule{Dedupe: "{json.id}", Scope: "off", Remember: time.Hour, RememberStatus: []string{"2xx"}})
	done := webhooks(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "done") }))
	deliver := httptest.NewRequest(http.MethodPost, "/webhooks", strings.NewReader(`{"id":"evt_1","charge":"ch_7"}`))
	deliver.Header.Set("Content-Type", "application/json")
	done.ServeHTTP(httptest.NewRecorder(), deliver)

	key := middleware.Delivery{Keys: []string{"charge:ch_7"}, ID: "evt_1", Host: "example.com"}.Key()
	state, err := inspect.Key(context.Background(), locker, key)
	fmt.Println(state.Remembered, err)
	// Output: true <nil>
}
