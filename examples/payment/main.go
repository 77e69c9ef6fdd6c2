// Command payment takes payments of orders, with chi as its router: one at a time for each order.
//
//	go run ./examples/payment
//	curl -X POST http://127.0.0.1:8080/orders/42/pay
package main

import (
	"cmp"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func newHandler(locker *redlock.Locker, pay, refund http.HandlerFunc) http.Handler {
	// A second payment of an order is refused. A refund waits: its order is not in doubt.
	refuse := middleware.New(locker, "order:{path.id}")
	wait := middleware.New(locker, "order:{path.id}", middleware.WithWait(5*time.Second))

	router := chi.NewRouter()
	router.With(refuse).Post("/orders/{id}/pay", pay)
	router.With(wait).Post("/orders/{id}/refund", refund)
	return router
}

func answer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(2 * time.Second): // the work
			fmt.Fprintln(w, text, "order", chi.URLParam(r, "id"))
		case <-r.Context().Done(): // the client has left, or the lease is lost
		}
	}
}

func main() {
	urls := strings.Fields(cmp.Or(os.Getenv("REDIS_URLS"), "memory://"))
	masters, err := redlock.Dial(urls...)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redlock.New(masters)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", newHandler(locker, answer("paid"), answer("refunded"))))
}
