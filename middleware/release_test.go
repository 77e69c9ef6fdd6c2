package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// blockedLog is a log that takes no line until it is released, as one whose pipe nobody reads.
type blockedLog struct {
	slog.Handler
	entered  chan bool
	released chan bool
}

func (b *blockedLog) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn
}

func (b *blockedLog) Handle(context.Context, slog.Record) error {
	b.entered <- true
	<-b.released
	return nil
}

// TestReleasedBeforeLogged: a log that blocks on what it is told of the lock on the keys doesn't keep the delivery locked.
func TestReleasedBeforeLogged(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	l := newLocker(t, redistest.URLs(servers), redlock.WithRestartGuard(0))
	other := newLocker(t, redistest.URLs(servers), redlock.WithRestartGuard(0))
	log := &blockedLog{Handler: slog.DiscardHandler, entered: make(chan bool), released: make(chan bool)}
	var claim string
	server := serve(t, middleware.New(l, "order:{header.Order}", middleware.Rule{Dedupe: "{header.Delivery}", Logger: slog.New(log)})(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			claim = middleware.RunningKey(middleware.Delivery{Keys: []string{turn.Key}, ID: "7", Host: "127.0.0.1"})
			if _, err := other.TryLock(r.Context(), claim); err == nil {
				t.Error("the delivery isn't locked by this key")
			}
			eventually(t, "it is released by force", func() bool { // Unlock will report it
				err := inspect.Force(t.Context(), other, turn.Key, 0, turn.Lock.Fence())
				if err != nil && !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, inspect.ErrFenceChanged) {
					t.Error(err)
				}
				return err == nil || turn.Lock.Err() != nil // the reply was late on a busy machine
			})
		})))
	var client sync.WaitGroup
	defer client.Wait()
	defer close(log.released)
	client.Go(func() { post(t, server.URL, "Order", "42", "Delivery", "7") })
	receive(t, log.entered, "line of the log")
	requireFree(t, other, claim)
}
