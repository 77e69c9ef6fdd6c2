package agent_test

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

type request struct {
	Method  string              `json:"method"`
	Target  string              `json:"target"`
	Host    string              `json:"host"`
	Remote  string              `json:"remote"`
	Header  map[string][]string `json:"header"`
	Trailer []string            `json:"trailer,omitempty"`
	Length  int64               `json:"length"`
	Body    bool                `json:"body"`
}

// askTurn asks for a turn as a gateway does; the body is sent in frames of so many bytes.
func askTurn(t testing.TB, client *http.Client, settings string, r request, body string) *held {
	t.Helper()
	r.Method = "POST"
	r.Host = cmp.Or(r.Host, "shop")
	if r.Body = body != ""; r.Body {
		r.Length = int64(len(body))
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	text := settings + "\n" + string(line)
	if r.Body {
		text += "\n"
		for part := range slices.Chunk([]byte(body), 7) {
			text += fmt.Sprintf("%d\n%s", len(part), part)
		}
		text += "0"
	}
	return post(t, client, "/v1/turn", text)
}

func status(t testing.TB, h *held) (int, string) {
	t.Helper()
	text, err := io.ReadAll(h.response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = h.body.Close()
	return h.response.StatusCode, string(text)
}

func TestTurn(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	const settings = `{"key":"order:{path.1:int}"}`
	r := request{Target: "/orders/42/pay", Header: map[string][]string{"Fencing-Token": {"9"}, "Fencing_token": {"9"}, "Connection": {"keep-alive, X-Order"}, "Accept": {"*/*"}}}
	h := askTurn(t, client, settings, r, "")
	first := h.first()
	requireHeld(t, locker, "order:42")
	if got := first.Set["Fencing-Token"]; first.Outcome != "acquired" || first.ValidMS == 0 || len(got) != 1 || got[0] != fmt.Sprint(first.Fence) {
		t.Errorf("first line %+v, want the fence to be set", first)
	}
	if !slices.Equal(first.Strip, []string{"Fencing_token"}) || len(first.Set) != 2 || first.Set["Connection"][0] != "keep-alive" {
		t.Errorf("first line %+v: want the other spelling stripped, and the option of Connection", first)
	}
	second := askTurn(t, client, settings, request{Target: "/orders/42?again"}, "")
	if code, text := status(t, second); code != 423 || !strings.Contains(text, "held") || second.response.Header.Get("Retry-After") == "" || second.response.Header.Get("Redlock-Outcome") != "held" || second.response.Header.Get("Redlock-Agent-Error") != "" {
		t.Errorf("second request: %d %s", code, text)
	}
	if last := h.end(); last.Released == nil || !*last.Released {
		t.Errorf("last line %+v, want released", last)
	}
	requireFree(t, locker, "order:42")
}

// TestTurnPasses: a request that the rule lets pass without a lock.
func TestTurnPasses(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live)))
	for settings, outcome := range map[string]string{`{"key":"order:{header.X}","on_missing_key":"pass"}`: "missing_key", `{"key":"order:{path.0}","dry_run":true}`: "dry_run"} {
		h := askTurn(t, client, settings, request{Target: "/orders"}, "")
		if first := h.first(); !first.Pass || first.Outcome != outcome || first.Fence != 0 {
			t.Errorf("first line %+v, want to pass with %s", first, outcome)
		}
		h.end()
	}
	dead := serve(t, "unix", agent.New(newLocker(t, []string{"redis://127.0.0.1:1"})))
	h := askTurn(t, dead, `{"key":"a","on_no_quorum":"pass"}`, request{Target: "/"}, "")
	if first := h.first(); !first.Pass || first.Outcome != "no_quorum" {
		t.Errorf("first line %+v, want to pass", first)
	}
	h.end()
}

// The host of a delivery is the one that the gateway's client has asked for.
func TestTurnHosts(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live)))
	for settings, want := range map[string]int{`{"idempotency_key":"required"}`: 200, `{"idempotency_key":"required","site":"shop"}`: 409} {
		at := func(host string) *held {
			return askTurn(t, client, settings, request{Target: "/", Host: host, Header: map[string][]string{"Idempotency-Key": {"a"}}}, "")
		}
		first := at("shop.example.com")
		first.first()
		for host, want := range map[string]int{"shop.example.com": 409, "bank.example.com": want} {
			other := at(host)
			if code := other.response.StatusCode; code != want {
				t.Errorf("%s: the same ID at %s: %d, want %d", settings, host, code, want)
			}
			other.close()
		}
		first.end()
	}
}

func TestTurnBodies(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	json := map[string][]string{"Content-Type": {"application/json"}}
	const body = `{"orders":[{"id":1},{"id":2}],"delivery":"d"}`
	h := askTurn(t, client, `{"key":"order:{body.orders[].id}","max_body":"100"}`, request{Target: "/", Header: json}, body)
	h.first()
	requireHeld(t, locker, "order:1")
	requireHeld(t, locker, "order:2")
	h.end()
	requireFree(t, locker, "order:1")

	mac := hmac.New(sha256.New, []byte("secret"))
	mac.Write([]byte(body))
	signed := map[string][]string{"Content-Type": {"application/json"}, "X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}
	const verify = `{"key":"a","verify":{"scheme":"github","secrets":["secret"]},"dedupe":"{body.delivery}"}`
	h = askTurn(t, client, verify, request{Target: "/", Header: signed}, body)
	h.first()
	if code, text := status(t, askTurn(t, client, verify, request{Target: "/", Header: signed}, body)); code != 409 || !strings.Contains(text, "duplicate") {
		t.Errorf("the same delivery: %d %s", code, text)
	}
	h.end()
	if code, text := status(t, askTurn(t, client, verify, request{Target: "/", Header: signed}, body+" ")); code != 401 {
		t.Errorf("a wrong signature: %d %s", code, text)
	}
	if code, text := status(t, askTurn(t, client, `{"key":"{body.a}","max_body":10}`, request{Target: "/", Header: json}, body)); code != 413 {
		t.Errorf("a large body: %d %s", code, text)
	}
	h = askTurn(t, client, `{"key":"unread"}`, request{Target: "/", Header: json}, body)
	h.first()
	requireHeld(t, locker, "unread")
	h.close()
	requireFree(t, locker, "unread")
}

// TestTurnBrokenOff keeps the lock of a turn that was broken off for hold_after_abort, and not that of one that has ended.
func TestTurnBrokenOff(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	const settings = `{"key":"{path.0}","hold_after_abort":"1h","max_hold":"2h"}`
	h := askTurn(t, client, settings, request{Target: "/ended"}, "")
	h.first()
	h.end()
	requireFree(t, locker, "ended")
	h = askTurn(t, client, settings, request{Target: "/broken"}, "")
	first := h.first()
	h.close()
	if lock, err := locker.TryLock(t.Context(), "broken"); err == nil { // it stays held, whenever this looks
		_ = lock.Unlock()
		t.Fatal("the lock was released")
	}
	if err := inspect.Force(t.Context(), locker, "broken", 0, first.Fence); err != nil {
		t.Fatal(err)
	}
}

func TestGatewaySettings(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live)))
	for settings, want := range map[string]string{
		`{"key":"order:{path.1}"}`:                          `"reads_body":false,"max_body":1048576,"body_timeout_ms":10000,"wait_ms":0,"fence_header":"Fencing-Token","on_client_abort":"run"}`,
		`{"key":"order:{path.1}","wait":"2m"}`:              `"wait_ms":120000`,
		`{"key":"{body.a}"}`:                                `"reads_body":true`,
		`{"key":"a","dedupe":"{json.id}"}`:                  `"reads_body":true`,
		`{"preset":"stripe","remember":"off"}`:              `"reads_body":true`,
		`{"preset":"idempotency-key","remember":"off"}`:     `"reads_body":true`,
		`{"preset":"idempotency-key"}`:                      `preset: has remember`,
		`{"key":"a","dedupe":"{header.X}","remember":"1h"}`: `remember: the agent doesn't see the responses`,
		`{"key":"{nonsense}"}`:                              `"status":400`,
		`{"key":"a","ttl":"10h"}`:                           `max ttl`,
		`{"color":"red"}`:                                   `color: unknown`,
		`{"key":"a","verify":{"scheme":"github"}}`:          `"status":400`,
	} {
		response, err := client.Post("http://redlock/v1/rule", "application/json", strings.NewReader(settings))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, want %s", settings, text, want)
		}
	}
}

// TestManyRules sends more rules than are kept.
func TestManyRules(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live)))
	for i := range 300 {
		h := askTurn(t, client, fmt.Sprintf(`{"key":"k%d"}`, i), request{Target: "/"}, "")
		h.first()
		h.end()
	}
}
