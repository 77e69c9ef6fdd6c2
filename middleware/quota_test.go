package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Clients without rights, whose requests are answered with 4xx, and one that sends much, keep out no other's responses.
func TestQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &notes{}
		const day = 24 * time.Hour
		handler := middleware.New(newLocker(t, live), "", middleware.Rule{IdempotencyKey: "required", Scope: "{header.Authorization}", Remember: day, RememberQuota: 80_000, Observer: n})(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") == "garbage" {
					http.NotFound(w, r)
				}
			}))
		pay := func(client, id string) (status int, replayed bool) {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Authorization", client)
			r.Header.Set("Idempotency-Key", id)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code, w.Header().Get("Idempotency-Replayed") != ""
		}
		remembered := func(client string, most int) (count int) {
			for i := range most {
				id := fmt.Sprintf("%d-%d", i, time.Now().Unix())
				pay(client, id)
				if _, replayed := pay(client, id); replayed {
					count++
				}
			}
			return count
		}
		if got := remembered("garbage", 100); got == 0 || got > 20 { // of 10,000 bytes, of which a client has three quarters
			t.Errorf("%d responses of 404 are remembered", got)
		}
		if got := remembered("Ann", 200); got < 50 || got > 110 { // of 70,000
			t.Errorf("%d responses to one client are remembered", got)
		}
		if got := remembered("Bob", 10); got != 10 {
			t.Errorf("%d of 10 responses to another client are remembered", got)
		}
		if !slices.Contains(n.reasons, middleware.ReasonQuota) {
			t.Error("no reason is quota")
		}
		time.Sleep(time.Hour + 2*time.Minute)
		if got := remembered("garbage", 5); got != 5 {
			t.Errorf("an hour later %d of 5 responses of 404 are remembered", got)
		}
		if _, replayed := pay("Ann", fmt.Sprintf("new-%d", time.Now().Unix())); replayed {
			t.Error("a new request is a repeat")
		}
		time.Sleep(day + time.Hour)
		if got := remembered("Ann", 50); got != 50 {
			t.Errorf("a day later %d of 50 responses to the client are remembered", got)
		}
	})
}
