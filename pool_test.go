package caddyredlock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

func init() { caddy.RegisterModule(&stuckLog{}) }

// stuckLog is a writer of Caddy's log that blocks on the messages of the Redis client.
type stuckLog struct{}

func (*stuckLog) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.stuck", New: func() caddy.Module { return &stuckLog{} }}
}

func (*stuckLog) String() string { return "a log that blocks" }

func (*stuckLog) WriterKey() string { return fmt.Sprintf("stuck %p", stuckLines) }

func (*stuckLog) OpenWriter() (io.WriteCloser, error) { return stuckLines, nil }

// stuckWriter keeps what has been written, and the messages of the Redis client wait until it is open.
type stuckWriter struct {
	open chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

var stuckLines *stuckWriter // of the test that runs

func (w *stuckWriter) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("redlock.client")) {
		<-w.open
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

func (w *stuckWriter) Close() error { return nil }

func (w *stuckWriter) written() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// TestClientLogThatBlocks: the messages of the Redis client wait for Caddy's log in their order, in one goroutine, which ends when
// they are written. Who has made them doesn't wait.
func TestClientLogThatBlocks(t *testing.T) {
	const messages = 500
	stuckLines = &stuckWriter{open: make(chan struct{})}
	config := `{"admin": {"disabled": true}, "logging": {"logs": {"default": {"level": "DEBUG", "encoder": {"format": "json"}, "writer": {"output": "stuck"}}}}}`
	if err := caddy.Load([]byte(config), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	before := runtime.NumGoroutine()
	for i := range messages {
		clientLog{}.Printf(context.Background(), "message %d.", i)
	}
	if more := runtime.NumGoroutine() - before; more > 5 { // Caddy's own come and go
		t.Errorf("%d goroutines more, while the log blocks", more)
	}
	close(stuckLines.open)
	text := ""
	for range 3000 {
		if text = stuckLines.written(); strings.Contains(text, fmt.Sprintf("message %d.", messages-1)) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	at := 0
	for i := range messages {
		next := strings.Index(text[at:], fmt.Sprintf("message %d.", i))
		if next < 0 {
			t.Fatalf("message %d is missing, or not in its place", i)
		}
		at += next
	}
}

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

// TestChangeover: what would lock beside the running configuration isn't loaded while that has locks, and the requests of one that was loaded
// wait for the last of the former, whichever of both comes first.
func TestChangeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := func(prefix string) *App {
			a := &App{KeyPrefix: prefix, share: new(share)}
			var err error
			if a.settings, err = a.resolve(caddy.NewReplacer()); err != nil {
				t.Fatal(err)
			}
			a.settings.setSum()
			return a
		}
		start := func(a *App) {
			t.Helper()
			if err := a.Start(); err != nil {
				t.Fatal(err)
			}
		}
		join := func(a *App) <-chan error {
			joined := make(chan error, 1)
			go func() {
				_, err := a.join(t.Context())
				joined <- err
			}()
			synctest.Wait()
			return joined
		}
		requireJoined := func(joined <-chan error, want error) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-joined:
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			default:
				t.Error("the request still waits")
			}
		}
		former, next := app("former"), app("next")
		start(former)
		requireJoined(join(former), nil)
		held, err := former.share.locker.Lock(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		if err := next.settings.refusal(); err == nil || !strings.Contains(err.Error(), "holds 1 locks") {
			t.Errorf("loaded beside a lock: %v", err)
		}
		if err := former.settings.refusal(); err != nil {
			t.Errorf("the same settings: %v", err)
		}
		_ = held.Unlock()
		if err := next.settings.refusal(); err != nil {
			t.Errorf("nothing is locked: %v", err)
		}
		start(next)
		late, waits := join(next), time.Now()
		requireJoined(join(former), nil) // it still serves, and was first
		time.Sleep(changeover)
		requireJoined(late, errChangeover)
		if waited := time.Since(waits); waited != changeover {
			t.Errorf("it has waited for %v", waited)
		}
		waiting := join(next)
		_ = former.Cleanup()
		_ = former.settings.leave()
		synctest.Wait()
		select {
		case err := <-waiting:
			t.Errorf("joined beside a request of the former configuration: %v", err)
		default:
		}
		_ = former.settings.leave()
		requireJoined(waiting, nil)
		late = join(former) // of a server that goes on serving for its last requests
		time.Sleep(changeover)
		requireJoined(late, errChangeover)
		_ = next.settings.leave()
		_ = next.Cleanup()
		requireJoined(join(former), nil)
		_ = former.settings.leave()
		if n := len(lockersInUse()); n != 0 {
			t.Errorf("%d lockers are in use", n)
		}
		all := make(chan prometheus.Metric, 1000)
		series.Collect(all) // forgets the Lockers, which nothing outside of this bubble may look at
	})
}
