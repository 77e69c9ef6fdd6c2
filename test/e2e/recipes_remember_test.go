package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
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

func requireResponse(t *testing.T, a received, status int, body string, replayed bool) {
	t.Helper()
	if a.status != status || a.body != body || (a.header.Get("Idempotency-Replayed") == "true") != replayed {
		t.Errorf("%d %q, header %v; want %d %q, replayed %v", a.status, a.body, a.header, status, body, replayed)
	}
}

func TestRecipeOfRepeatedDeliveries(t *testing.T) {
	text := strings.ReplaceAll(recipe(t, "Webhooks"), "./run/secrets/stripe", "."+secretFile(t, secret))
	c := runDocumented(t, text, redistest.Start(t, 3), newCounter(t))
	deliver := func(endpoint, id string, sent time.Time) received {
		body := fmt.Sprintf(`{"id":%q,"data":{"object":{"customer":"cus_1"}}}`, id)
		now := fmt.Sprint(sent.Unix())
		sum := hmac.New(sha256.New, []byte(secret))
		sum.Write([]byte(now + "." + body))
		return send(t, withBody(c.url+"/webhooks/stripe"+endpoint, body, "Stripe-Signature", fmt.Sprintf("t=%s,v1=%x", now, sum.Sum(nil))))
	}
	now := time.Now()
	requireResponse(t, deliver("", "evt_1", now), 500, "served 1", false)
	requireResponse(t, deliver("", "evt_1", now), 200, "served 2", false)
	requireResponse(t, deliver("", "evt_1", now.Add(time.Second)), 200, "served 2", true) // signed anew
	requireResponse(t, deliver("", "evt_2", now), 200, "served 3", false)
	requireResponse(t, deliver("/other", "evt_1", now), 200, "served 4", false)
	requireResponse(t, deliver("", "evt_1", now), 200, "served 2", true)
}

// TestRecipeOfShopify sends what Shopify does: one event for two topics, its repeats, and a refund of the order meanwhile.
func TestRecipeOfShopify(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile(filepath.Join("../..", recipes))
	if err != nil {
		t.Fatal(err)
	}
	settings := regexp.MustCompile("For Shopify, set `(preset shopify)`, `(verify shopify .*)` and `(remember .*?)`").FindStringSubmatch(string(document))
	if settings == nil {
		t.Fatalf("%s has no settings for Shopify", recipes)
	}
	c, b, release := runRecipe(t, "Webhooks", "/webhooks/stripe", "/webhooks/shopify", "preset stripe", settings[1]+"\n\t\twait 2m",
		"verify stripe {file./run/secrets/stripe}", strings.ReplaceAll(settings[2], "./run/secrets/shopify", "."+secretFile(t, secret)), "remember 72h", settings[3])
	delivery := func(key, shop, event, topic, body string) *http.Request {
		sum := hmac.New(sha256.New, []byte(key))
		sum.Write([]byte(body))
		return withBody(c.url+"/webhooks/shopify", body, "X-Shopify-Shop-Domain", shop, "X-Shopify-Event-Id", event, "X-Shopify-Topic", topic,
			"X-Shopify-Hmac-Sha256", base64.StdEncoding.EncodeToString(sum.Sum(nil)))
	}
	order := func(event, topic string) *http.Request {
		return delivery(secret, "a.myshopify.com", event, topic, `{"id":5001,"admin_graphql_api_id":"gid://shopify/Order/5001"}`)
	}
	wait := b.holdRequests(t, order("e1", "orders/paid"))
	requireStatus(t, send(t, delivery("another secret", "a.myshopify.com", "e9", "orders/paid", `{"id":5001}`)), http.StatusUnauthorized)
	requireStatus(t, send(t, order("e1", "orders/paid")), http.StatusConflict) // it runs
	line := sendAll(t, order("e1", "orders/updated"), delivery(secret, "a.myshopify.com", "e2", "refunds/create", `{"id":8901,"order_id":5001}`))
	apart := sendAll(t, delivery(secret, "b.myshopify.com", "e3", "orders/paid", `{"id":5001}`))
	eventually(t, "another shop's order is handled", func() bool { return b.inside() == 2 })
	release()
	for _, a := range slices.Concat(wait(), line(), apart()) {
		requireStatus(t, a, http.StatusOK)
	}
	if again := send(t, order("e1", "orders/paid")); again.status != http.StatusOK || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("the repeat: %d %v", again.status, again.header)
	}
	if n := b.servedTotal(); n != 4 {
		t.Errorf("%d deliveries were handled, want 4", n)
	}
}

// TestRecipeOfRefreshes: a server that rotates its tokens sees one use of each, and all who have sent it get the new one, however they
// authenticate.
func TestRecipeOfRefreshes(t *testing.T) {
	t.Parallel()
	var used sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := r.FormValue("refresh_token")
		if _, again := used.LoadOrStore(token, true); token != "" && again {
			w.WriteHeader(http.StatusBadRequest) // reuse: the session has ended
			return
		}
		_, _ = fmt.Fprintf(w, `{"refresh_token":"after %s","locked":%v}`, token, r.Header.Get("Fencing-Token") != "")
	}))
	t.Cleanup(server.Close)
	text := strings.ReplaceAll(recipe(t, "One refresh of a token"), "/run/secrets/responses", secretFile(t, base64.StdEncoding.EncodeToString(make([]byte, 32))))
	c := runDocumented(t, strings.Replace(text, "wait 10s", "wait 2m", 1), redistest.Start(t, 3), server.Listener.Addr().String())
	ask := func(path, form string, header ...string) *http.Request {
		r := withBody(c.url+path, form, header...)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return r
	}
	basic := []string{"Authorization", "Basic YXBwOnNlY3JldA=="}
	for i, client := range []struct {
		path, form string
		header     []string
	}{
		{path: "/oauth2/token", form: "&client_id=app"},
		{path: "/oauth2/token", header: basic},
		{path: "/oauth2/token", form: "&client_id=app", header: basic},
		{path: "/oauth2/token", form: "&client_assertion=e30.e30.x"},
		{path: "/oauth2/token/", form: "&client_id=app"}, // Express serves it as the path without the slash
	} {
		requests := make([]*http.Request, 6)
		for n := range requests {
			requests[n] = ask(client.path, fmt.Sprintf("grant_type=refresh_token&refresh_token=R%d%s", i, client.form), client.header...)
		}
		for _, a := range sendAll(t, requests...)() {
			if want := fmt.Sprintf(`{"refresh_token":"after R%d","locked":true}`, i); a.status != http.StatusOK || a.body != want {
				t.Errorf("%+v: %d %s, want %s", client, a.status, a.body, want)
			}
		}
	}
	stolen := ask("/oauth2/token", "grant_type=refresh_token&refresh_token=R1", "Authorization", "Basic YXBwOmd1ZXNz") // with a wrong secret
	requireStatus(t, send(t, stolen), http.StatusBadRequest)                                                           // by the server
	requireStatus(t, send(t, ask("/oauth2/token", "grant_type=authorization_code&code=1", basic...)), http.StatusOK)
}

func TestRecipeOfIdempotencyKeys(t *testing.T) {
	t.Parallel()
	c := runDocumented(t, recipe(t, "An API with Idempotency-Key"), redistest.Start(t, 3), newCounter(t))
	pay := func(body string, header ...string) received {
		return send(t, withBody(c.url+"/payments", body, header...))
	}
	alice, bob := []string{"Authorization", "Bearer alice", "Idempotency-Key", `"a1"`}, []string{"Authorization", "Bearer bob", "Idempotency-Key", `"a1"`}
	requireResponse(t, pay("{}", alice...), 500, "served 1", false)
	requireResponse(t, pay("{}", alice...), 200, "served 2", false)
	requireResponse(t, pay("{}", alice...), 200, "served 2", true)
	requireResponse(t, pay("{}", bob...), 200, "served 3", false)
	requireResponse(t, pay("{}", bob...), 200, "served 3", true)
	for outcome, refused := range map[string]received{
		"mismatch":      pay(`{"amount":1}`, alice...),
		"missing_id":    pay("{}", alice[:2]...),
		"missing_scope": pay("{}", alice[2:]...),
	} {
		want := map[string]int{"mismatch": http.StatusUnprocessableEntity, "missing_id": http.StatusBadRequest, "missing_scope": http.StatusUnauthorized}[outcome]
		if refused.status != want || refused.header.Get("Redlock-Outcome") != outcome {
			t.Errorf("%d %s, want %d %s", refused.status, refused.header.Get("Redlock-Outcome"), want, outcome)
		}
	}
	lower := func() received {
		r := withBody(c.url+"/payments", "{}", "Authorization", "Bearer carol", "Idempotency-Key", `"c1"`)
		r.Method = "post" // which the upstream may take for POST
		return send(t, r)
	}
	requireResponse(t, lower(), 200, "served 4", false)
	requireResponse(t, lower(), 200, "served 4", true)
	requireResponse(t, get(t, c.url+"/payments"), 200, "served 5", false) // which needs no ID
}
