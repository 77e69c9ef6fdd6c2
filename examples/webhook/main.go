// Command webhook receives webhooks. Senders deliver an event again if the response takes too long. Here, deliveries of one event
// run one at a time, in all processes that share the masters.
//
//	REDIS_URLS="redis://10.0.0.1:6379 redis://10.0.0.2:6379 redis://10.0.0.3:6379" go run ./examples/webhook
//
// Without REDIS_URLS the locks are kept in memory, which only works for a single process.
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
	"sync"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func newHandler(locker *redlock.Locker, receive http.Handler) http.Handler {
	oneAtATime := middleware.New(locker, "webhook:{path.sender:id}:{header.Webhook-Id:id}", middleware.Rule{})
	mux := http.NewServeMux()
	mux.Handle("POST /webhooks/{sender}", oneAtATime(receive))
	return mux
}

// receiver does the work of each event once. The lock keeps another delivery from looking the event up before this one has
// recorded it.
type receiver struct {
	done sync.Map // stands for your database
	work func(ctx context.Context, event string) error
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event := r.PathValue("sender") + "/" + r.Header.Get("Webhook-Id")
	if _, ok := rc.done.Load(event); ok {
		fmt.Fprintln(w, "done before")
	} else if err := rc.work(r.Context(), event); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
	} else {
		rc.done.Store(event, true)
		fmt.Fprintln(w, "done")
	}
}

func run(ctx context.Context, addr string, urls ...string) error {
	locker, err := redlock.Open(urls)
	if err != nil {
		return err
	}
	work := func(context.Context, string) error { time.Sleep(2 * time.Second); return nil }
	server := &http.Server{Addr: addr, Handler: newHandler(locker, &receiver{work: work})}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	if err = server.ListenAndServe(); errors.Is(err, http.ErrServerClosed) {
		err = <-stopped // when the last requests are done
	}
	return errors.Join(err, locker.Close())
}

func main() {
	urls := strings.Fields(cmp.Or(os.Getenv("REDIS_URLS"), "memory://"))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "127.0.0.1:8080", urls...); err != nil {
		log.Fatal(err)
	}
}
