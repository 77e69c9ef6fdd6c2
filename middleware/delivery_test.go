package middleware_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// What one method, query or tenant has been answered is no response to another, though the ID is the same and fingerprints are ignored.
func TestPlaceOfADelivery(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: "github", Remember: hour,
		Verify: &middleware.Verify{Scheme: "github", Secrets: []string{"one tenant", "another"}}})(c))
	send := func(method, path, secret string) received {
		const body = `{"repository":{"id":1}}`
		sum := hmac.New(sha256.New, []byte(secret))
		_, _ = io.WriteString(sum, body)
		r := newRequest(t, server.URL+path, "X-GitHub-Delivery", "a", "X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)), "Content-Type", jsonType)
		r.Method, r.Body, r.ContentLength = method, io.NopCloser(strings.NewReader(body)), int64(len(body))
		return do(t, r)
	}
	for i, d := range [][3]string{
		{"POST", "/hook", "one tenant"}, {"HEAD", "/hook", "one tenant"}, {"PUT", "/hook", "one tenant"},
		{"POST", "/hook?tenant=b", "one tenant"}, {"POST", "/hook?tenant=b", "another"}, {"POST", "/hook", "another"},
	} {
		first := send(d[0], d[1], d[2])
		c.requireRuns(t, int64(i+1))
		requireReplay(t, send(d[0], d[1], d[2]), first)
		c.requireRuns(t, int64(i+1))
	}
}

// A payment that is refused and then succeeds, and a request for information that is answered, are two events each to Adyen, with one
// reference and one code.
func TestUpdatesOfAdyen(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	server := serve(t, middleware.New(newLocker(t, live), "", middleware.Rule{Preset: "adyen", Remember: hour})(c))
	json := `{"live":"true","notificationItems":[{"NotificationRequestItem":{"pspReference":"P1","eventCode":"%s","success":"%s","additionalData":{"disputeStatus":"%s"}}}]}`
	for i, event := range [][]any{
		{"AUTHORISATION", "false", ""}, {"AUTHORISATION", "true", ""},
		{"REQUEST_FOR_INFORMATION", "true", "Unresponded"}, {"REQUEST_FOR_INFORMATION", "true", "Responded"},
	} {
		for _, body := range []struct{ kind, text string }{
			{jsonType, fmt.Sprintf(json, event...)},
			{formType, fmt.Sprintf("pspReference=P2&eventCode=%s&success=%s&additionalData.disputeStatus=%s", event...)},
		} {
			first := postBody(t, server.URL, body.kind, strings.NewReader(body.text))
			requireReplay(t, postBody(t, server.URL, body.kind, strings.NewReader(body.text)), first)
		}
		c.requireRuns(t, int64(2*i+2))
	}
}

// A rule inside of another with the same ID knows its own request, whether the two remember responses or not.
func TestNestedDeliveries(t *testing.T) {
	t.Parallel()
	preset := middleware.Rule{Preset: "idempotency-key"}
	dedupe, remember := middleware.Rule{Dedupe: "{header.Idempotency-Key}"}, middleware.Rule{Dedupe: "{header.Idempotency-Key}", Remember: hour}
	for name, rules := range map[string]struct {
		outer, inner middleware.Rule
		template     string
		remembers    bool
	}{
		"the ID alone":       {preset, preset, "", true},
		"with a key":         {preset, preset, "order:{header.Order}", true},
		"dedupe twice":       {dedupe, dedupe, "order:{header.Order}", false},
		"dedupe outside":     {dedupe, remember, "order:{header.Order}", true},
		"dedupe inside":      {remember, dedupe, "order:{header.Order}", true},
		"remembering twice":  {remember, remember, "order:{header.Order}", true},
		"another rule's key": {preset, remember, "order:{header.Order}", true},
	} {
		l := newLocker(t, live)
		c := &cashier{answer: func(w http.ResponseWriter, r *http.Request) {
			if turn, _ := middleware.TurnFromContext(r.Context()); turn.Lock == nil || turn.Key == "" || turn.Outcome != middleware.OutcomeAcquired || r.Header.Get("Fencing-Token") == "" {
				t.Errorf("%s: turn %+v", name, turn)
			}
			receipt(w, r)
		}}
		server := serve(t, middleware.New(l, rules.template, rules.outer)(middleware.New(l, rules.template, rules.inner)(c)))
		pay := func() received {
			return post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x", "Order", "42")
		}
		first := pay()
		if first.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %d %s", name, first.StatusCode, first.body)
		}
		if again := pay(); rules.remembers {
			requireReplay(t, again, first)
		} else if again.StatusCode != http.StatusCreated || again.body == first.body {
			t.Errorf("%s: %d %s", name, again.StatusCode, again.body)
		}
	}
}

// An Idempotency-Key names one request: with another key it is a mistake of the client.
func TestIdempotencyKeyOfAnotherOrder(t *testing.T) {
	t.Parallel()
	c := &cashier{answer: receipt}
	server := serve(t, orders(newLocker(t, live), c.ServeHTTP, middleware.Rule{Preset: "idempotency-key"}))
	pay := func(order string) received {
		return post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x", "Order", order)
	}
	first := pay("42")
	requireProblem(t, pay("43"), http.StatusUnprocessableEntity, "mismatch")
	requireReplay(t, pay("42"), first)
	c.requireRuns(t, 1)
}

// A request that has no key keeps its ID, where the rule lets it pass.
func TestIDWithoutAKey(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]middleware.Rule{
		"preset": {Preset: "idempotency-key"}, "dedupe": {Dedupe: "{header.Idempotency-Key}", Remember: hour, Scope: "{header.Authorization}"},
	} {
		rule.OnMissingKey = middleware.Pass
		c := &cashier{answer: receipt}
		server := serve(t, orders(newLocker(t, live), c.ServeHTTP, rule))
		first := post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x")
		requireReplay(t, post(t, server.URL, "Idempotency-Key", "a", "Authorization", "x"), first)
		c.requireRuns(t, 1)
		requireProblem(t, post(t, server.URL, "Idempotency-Key", "a"), http.StatusBadRequest, "missing_key") // of nobody
		c.requireRuns(t, 1)
		if got := post(t, server.URL, "Authorization", "x"); name == "preset" {
			requireProblem(t, got, http.StatusBadRequest, "missing_id")
		} else if got.StatusCode != http.StatusCreated {
			t.Errorf("%s: without key and ID: %d %s", name, got.StatusCode, got.body)
		}
	}
}
