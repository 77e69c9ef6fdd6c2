package stacks

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

// payAtFiber sends n payments of one order at once.
func payAtFiber(t *testing.T, app *fiber.App, n int) (statuses map[int]int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener) }()
	var all sync.WaitGroup
	var mu sync.Mutex
	statuses = make(map[int]int)
	for range n {
		all.Go(func() {
			response, err := http.Post("http://"+listener.Addr().String()+"/orders/42/pay", "text/plain", strings.NewReader("10 euros"))
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			statuses[response.StatusCode]++
		})
	}
	all.Wait()
	_ = listener.Close() // app.Shutdown has a data race with requests' contexts
	<-served
	return statuses
}

// The wrapped handler holds the lock while it runs.
func TestFiber(t *testing.T) {
	locker := redlocktest.New(t)
	var inside, overlaps atomic.Int32
	statuses := payAtFiber(t, Fiber(locker, func(_ http.ResponseWriter, _ *http.Request) {
		if inside.Add(1) > 1 {
			overlaps.Add(1)
		}
		if _, err := locker.TryLock(t.Context(), "order:42"); err == nil {
			t.Error("the handler runs without its lock")
		}
		inside.Add(-1)
	}), 10)
	if overlaps.Load() > 0 || statuses[http.StatusOK] == 0 || statuses[http.StatusOK]+statuses[http.StatusLocked] != 10 {
		t.Errorf("%d overlaps, responses %v", overlaps.Load(), statuses)
	}
}

// Fiber's adaptor of middleware would run the handler without the lock. Package middleware detects that, and the handler does not
// run at all.
func TestFiberMiddlewareIsRefused(t *testing.T) {
	var served atomic.Int32
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	app.Post("/orders/:id/pay", adaptor.HTTPMiddleware(middleware.New(redlocktest.New(t), "order:{path.1}", middleware.Rule{})), func(*fiber.Ctx) error {
		served.Add(1)
		return nil
	})
	if statuses := payAtFiber(t, app, 3); statuses[http.StatusInternalServerError] != 3 || served.Load() > 0 {
		t.Errorf("responses %v, %d were served", statuses, served.Load())
	}
}
