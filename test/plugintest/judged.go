package plugintest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// testSignatures has the agent verify bodies, and refuse a delivery that comes again while the first is served. The upstream gets what
// was signed.
func testSignatures(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	var got []string
	var deliver func(delivery, body, signed string) *httptest.ResponseRecorder
	h := handler(t, p, a, func(_ http.ResponseWriter, r *http.Request) {
		want(t, deliver(r.Header.Get("X-GitHub-Delivery"), "paid", "paid"), http.StatusConflict, "duplicate")
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, string(body))
	}, "verify", map[string]any{"scheme": "github", "secrets": []any{"old secret", "secret"}}, "dedupe", "{header.X-GitHub-Delivery}")
	deliver = func(delivery, body, signed string) *httptest.ResponseRecorder {
		mac := hmac.New(sha256.New, []byte("secret"))
		_, _ = io.WriteString(mac, signed)
		r := httptest.NewRequest(http.MethodPost, "/orders/42", strings.NewReader(body))
		r.Header.Set("X-GitHub-Delivery", delivery)
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	want(t, deliver("1", "paid", "paid"), http.StatusOK, "")
	want(t, deliver("2", "forged", "paid"), http.StatusUnauthorized, "bad_signature")
	want(t, deliver("2", "again", "again"), http.StatusOK, "")
	if strings.Join(got, " ") != "paid again" {
		t.Errorf("the upstream gets %q", got)
	}
	if strings.Contains(p.Log(), "secret") {
		t.Errorf("a secret is in the log: %s", p.Log())
	}
}

// testSeveralKeys has a request hold two keys: others of either are refused, and both are free after it.
func testSeveralKeys(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	from := handler(t, p, a, nothing, "key", "account:{path.1}")
	both := handler(t, p, a, func(http.ResponseWriter, *http.Request) {
		for account, status := range map[string]int{"1": http.StatusLocked, "2": http.StatusLocked, "3": http.StatusOK} {
			if w := pay(from, account); w.Code != status {
				t.Errorf("account %s, while 1 and 2 are held: status %d, want %d", account, w.Code, status)
			}
		}
	}, "key", []any{"account:{path.1}", "account:{header.X-To}"})
	want(t, pay(both, "1", "X-To", "2"), http.StatusOK, "")
	redistest.RequireNoKeys(t, a.servers)
}

// testLabels gives settings as Docker's labels do: each is a text.
func testLabels(t *testing.T, p *Plugin) {
	a := newAgent(t, "unix", "")
	labels := []any{"heldStatus", "429", "wait", "50ms", "dryRun", "false", "maxWaiters", "10", "maxBody", "1MiB"}
	other := handler(t, p, a, nothing, labels...)
	h := handler(t, p, a, func(http.ResponseWriter, *http.Request) {
		want(t, pay(other, "42"), http.StatusTooManyRequests, "held")
	}, labels...)
	want(t, pay(h, "42"), http.StatusOK, "")
	_, err := p.New(t.Context(), http.HandlerFunc(nothing), with(a, "heldStatus", "many"))
	if err == nil || !strings.Contains(err.Error(), "held_status") {
		t.Errorf("error %v, want one that names held_status", err)
	}
}
