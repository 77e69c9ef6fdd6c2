package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// newCounter returns an upstream that answers with how many requests it has served, and fails the first.
func newCounter(t *testing.T) (addr string) {
	t.Helper()
	var served atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n := served.Add(1)
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = fmt.Fprintf(w, "served %d", n)
	}))
	t.Cleanup(upstream.Close)
	return upstream.Listener.Addr().String()
}

func requireAnswer(t *testing.T, a answer, status int, body string, replayed bool) {
	t.Helper()
	if a.status != status || a.body != body || (a.header.Get("Idempotency-Replayed") == "true") != replayed {
		t.Errorf("%d %q, header %v; want %d %q, replayed %v", a.status, a.body, a.header, status, body, replayed)
	}
}

func TestRecipeOfRepeatedDeliveries(t *testing.T) {
	text := strings.ReplaceAll(block(t, recipes, "A repeated delivery gets the first answer", "caddyfile"), "./run/secrets/stripe", "."+secretFile(t, secret))
	c := runDocumented(t, text, redistest.Start(t, 3), newCounter(t))
	deliver := func(endpoint, id string, sent time.Time) answer {
		body := fmt.Sprintf(`{"id":%q,"data":{"object":{"customer":"cus_1"}}}`, id)
		now := fmt.Sprint(sent.Unix())
		sum := hmac.New(sha256.New, []byte(secret))
		sum.Write([]byte(now + "." + body))
		return send(t, withBody(c.url+"/webhooks/stripe"+endpoint, body, "Stripe-Signature", fmt.Sprintf("t=%s,v1=%x", now, sum.Sum(nil))))
	}
	now := time.Now()
	requireAnswer(t, deliver("", "evt_1", now), 500, "served 1", false)
	requireAnswer(t, deliver("", "evt_1", now), 200, "served 2", false)
	requireAnswer(t, deliver("", "evt_1", now.Add(time.Second)), 200, "served 2", true) // signed anew
	requireAnswer(t, deliver("", "evt_2", now), 200, "served 3", false)
	requireAnswer(t, deliver("/other", "evt_1", now), 200, "served 4", false)
	requireAnswer(t, deliver("", "evt_1", now), 200, "served 2", true)
}

func TestRecipeOfIdempotencyKeys(t *testing.T) {
	c := runDocumented(t, block(t, recipes, "An API with Idempotency-Key", "caddyfile"), redistest.Start(t, 3), newCounter(t))
	pay := func(body string, header ...string) answer {
		return send(t, withBody(c.url+"/payments", body, header...))
	}
	alice, bob := []string{"Authorization", "Bearer alice", "Idempotency-Key", `"a1"`}, []string{"Authorization", "Bearer bob", "Idempotency-Key", `"a1"`}
	requireAnswer(t, pay("{}", alice...), 500, "served 1", false)
	requireAnswer(t, pay("{}", alice...), 200, "served 2", false)
	requireAnswer(t, pay("{}", alice...), 200, "served 2", true)
	requireAnswer(t, pay("{}", bob...), 200, "served 3", false)
	requireAnswer(t, pay("{}", bob...), 200, "served 3", true)
	for outcome, refused := range map[string]answer{
		"mismatch":    pay(`{"amount":1}`, alice...),
		"missing_id":  pay("{}", alice[:2]...),
		"missing_key": pay("{}", alice[2:]...),
	} {
		want := http.StatusBadRequest
		if outcome == "mismatch" {
			want = http.StatusUnprocessableEntity
		}
		if refused.status != want || refused.header.Get("Redlock-Outcome") != outcome {
			t.Errorf("%d %s, want %d %s", refused.status, refused.header.Get("Redlock-Outcome"), want, outcome)
		}
	}
	requireAnswer(t, get(t, c.url+"/payments"), 200, "served 4", false) // which needs no ID
}
