// Command server takes payments, one at a time for each order. When it is told to end, requests that wait get 503, those that run are
// finished, and only then their locks are closed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func main() {
	locker, err := redlock.Open([]string{"redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	oneAtATime := middleware.New(locker, "order:{path.id:int}", middleware.Rule{
		BufferBody: new(true), BufferResponse: new(true), Wait: 2 * time.Second,
		Shutdown: ctx, // then requests that wait get 503
	})
	http.Handle("POST /orders/{id}/pay", oneAtATime(http.HandlerFunc(pay)))

	server := &http.Server{Addr: "127.0.0.1:8080"}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	if err = server.ListenAndServe(); errors.Is(err, http.ErrServerClosed) {
		err = <-stopped // when the last requests are done
	}
	if err := errors.Join(err, locker.Close()); err != nil { // not before: that would end their locks
		log.Fatal(err)
	}
}

// pay runs once at a time for each order. Its request's context ends if the lock is lost.
func pay(w http.ResponseWriter, r *http.Request) {
	turn, _ := middleware.TurnFromContext(r.Context())
	fence, _ := turn.Fence()
	fmt.Fprintf(w, "paid order %s, with fencing token %d\n", r.PathValue("id"), fence)
}
