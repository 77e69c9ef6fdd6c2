package middleware_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// newExampleLocker is on a master in memory, so that the examples run without a server. In
// production give Dial the URLs of three or five independent servers.
func newExampleLocker() *redlock.Locker {
	masters, err := redlock.Dial("memory://")
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redlock.New(masters)
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

func ExampleNew() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	var mux http.ServeMux
	pay := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnOf(r.Context())
		fmt.Println("paying, with the lock on", turn.Key)

		// The same order once more, while this request runs:
		second := httptest.NewRecorder()
		mux.ServeHTTP(second, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
		fmt.Println("second request:", second.Code, second.Body)
	})
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id}")(pay))

	first := httptest.NewRecorder()
	mux.ServeHTTP(first, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
	fmt.Println("first request:", first.Code)
	// Output:
	// paying, with the lock on order:42
	// second request: 423 {"type":"https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#held","title":"Another request with the same key is in progress","status":423}
	//
	// first request: 200
}

// A function makes the key where a template can't: here of the user whom an earlier handler has
// found.
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
	serialize := middleware.NewFunc(locker, key, middleware.WithWait(2*time.Second))
	handler := serialize(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnOf(r.Context())
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
