package caddyredlock

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestRequestBeforeStart: the app http serves before the app redlock has started. What such a request has left in the memory of the process
// is there for those after Start, and goes with Cleanup.
func TestRequestBeforeStart(t *testing.T) {
	var payments atomic.Int32
	shop := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { payments.Add(1) }))
	t.Cleanup(shop.Close)
	url := fmt.Sprintf("http://127.0.0.1:%d", redistest.FreePort(t))
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(`{
		admin off
		default_bind 127.0.0.1
		persist_config off
		storage_clean_interval off
	}
	`+url+` {
		redlock {
			idempotency_key required
			scope off
			remember 1h
		}
		reverse_proxy `+shop.Listener.Addr().String()+`
	}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	config := new(caddy.Config)
	if err := json.Unmarshal(text, config); err != nil {
		t.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(config)
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string) caddy.App {
		t.Helper()
		module, err := ctx.App(name)
		if err != nil {
			t.Fatal(err)
		}
		app := module.(caddy.App)
		if err := app.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = app.Stop() })
		return app
	}
	pay := func() {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Idempotency-Key", "a")
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		if a.StatusCode != http.StatusOK {
			t.Errorf("status %d", a.StatusCode)
		}
	}
	start("http")
	pay()
	redlock := start("redlock").(*App)
	pay()
	if n := payments.Load(); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
	if err := redlock.Cleanup(); err != nil {
		t.Error(err)
	}
	if n := len(lockersInUse()); n != 0 {
		t.Errorf("%d lockers are in use after Cleanup", n)
	}
	pay() // of a server that goes on serving for its last requests
	if n := len(lockersInUse()); n != 0 {
		t.Errorf("%d lockers are in use after a request that came after Cleanup", n)
	}
}
