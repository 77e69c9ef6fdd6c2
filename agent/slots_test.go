package agent_test

import (
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
)

// TestSlots: the first line says which slot a lock has, if there are several.
func TestSlots(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	const ask = `{"key":"k","concurrency":2,"try":true}`
	slots := make(map[int]bool)
	for range 2 {
		h := post(t, client, "/v1/lock", ask)
		defer h.end()
		if first := h.first(); first.Slot == nil {
			t.Error("the first line has no slot")
		} else {
			slots[*first.Slot] = true
		}
	}
	if len(slots) != 2 || !slots[0] || !slots[1] {
		t.Errorf("slots %v, want 0 and 1", slots)
	}
	for ask, want := range map[string]struct {
		code int
		text string
	}{
		ask:                             {423, "all 2 slots are taken"},
		`{"key":"k","concurrency":257}`: {400, "256"},
		`{"key":"k","concurrency":-1}`:  {400, "256"},

		`{"keys":["one","k"],"concurrency":[1,2],"try":true}`: {423, "all 2 slots are taken"},
		`{"keys":["one","k"],"concurrency":[1,2,3]}`:          {400, "3 numbers and 2 keys"},
		`{"key":"k","concurrency":[]}`:                        {400, "0 numbers"},
	} {
		if code, text := status(t, post(t, client, "/v1/lock", ask)); code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %s, want %d %s", ask, code, text, want.code, want.text)
		}
	}
	several := post(t, client, "/v1/lock", `{"keys":["k1","k2"],"concurrency":2}`)
	if first := several.first(); first.Slot != nil {
		t.Errorf("slot %d of several keys", *first.Slot)
	}
	several.end()
	mixed := post(t, client, "/v1/lock", `{"keys":["one","two"],"concurrency":[1,2]}`)
	mixed.first()
	for ask, want := range map[string]int{`{"key":"one","try":true}`: 423, `{"key":"two","concurrency":2,"try":true}`: 200} {
		h := post(t, client, "/v1/lock", ask)
		if h.response.StatusCode != want {
			t.Errorf("%s beside one who has both: %d", ask, h.response.StatusCode)
		}
		h.end()
	}
	mixed.end()
	one := post(t, client, "/v1/lock", `{"key":"other","concurrency":1}`)
	if first := one.first(); first.Slot != nil {
		t.Errorf("slot %d of one", *first.Slot)
	}
	one.end()
}
