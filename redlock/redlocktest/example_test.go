package redlocktest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

// newHandler is a program's own, which pays orders.
func newHandler(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	routes := http.NewServeMux()
	routes.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id:int}", middleware.Rule{})(pay))
	return routes
}

// paid is the response to a payment of the order 42.
func paid(handler http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
	return w
}

// What docs/testing.md shows:

func TestSecondPayment(t *testing.T) {
	locker := redlocktest.New(t)
	handler := newHandler(locker, func(http.ResponseWriter, *http.Request) { t.Error("paid twice") })
	if _, err := locker.TryLock(t.Context(), "order:42"); err != nil { // as another payment does
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("POST", "/orders/42/pay", nil))
	if w.Code != http.StatusLocked {
		t.Errorf("a second payment: %d %s", w.Code, w.Body)
	}
}

// The rest of a handler's bad days:

func TestLostPayment(t *testing.T) {
	locker := redlocktest.New(t)
	handler := newHandler(locker, func(_ http.ResponseWriter, r *http.Request) {
		redlocktest.Lose(t, locker, "order:42")
		<-r.Context().Done() // the work stops
		if cause := context.Cause(r.Context()); !errors.Is(cause, redlock.ErrLost) {
			t.Errorf("stopped by %v", cause)
		}
	})
	if w := paid(handler); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestPaymentWithoutMasters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var master redlocktest.Master
		handler := newHandler(master.Locker(t), func(http.ResponseWriter, *http.Request) {})
		master.SetAvailable(false)
		if w := paid(handler); w.Code != http.StatusConflict {
			t.Errorf("while the master is away: %d %s", w.Code, w.Body)
		}
		time.Sleep(time.Hour)
		master.SetAvailable(true)
		if w := paid(handler); w.Code != http.StatusOK {
			t.Errorf("as it is back: %d %s", w.Code, w.Body)
		}
	})
}
