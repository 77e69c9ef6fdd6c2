// Command payment takes payments of orders, one at a time for each order. Its router is chi.
//
//	go run ./examples/payment
//	curl -X POST http://127.0.0.1:8080/orders/42/pay
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func newHandler(locker *redlock.Locker, pay, refund http.HandlerFunc) http.Handler {
	// A second payment of an order is refused. A refund waits: its order is not in doubt.
	buffer := new(true) // no client that sends slowly holds an order
	refuse := middleware.New(locker, "order:{path.id:int}", middleware.Rule{BufferBody: buffer})
	wait := middleware.New(locker, "order:{path.id:int}", middleware.Rule{BufferBody: buffer, Wait: 5 * time.Second})

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
	locker, err := redlock.Open(urls)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: newHandler(locker, answer("paid"), answer("refunded"))}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	if err = server.ListenAndServe(); errors.Is(err, http.ErrServerClosed) {
		err = <-stopped // when the last requests are done
	}
	if err := errors.Join(err, locker.Close()); err != nil {
		log.Fatal(err)
	}
}
