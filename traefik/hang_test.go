package traefik

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

// TestMayNotOpen: the error of a socket that Traefik's user may not open says who may.
func TestMayNotOpen(t *testing.T) {
	a, err := agentAt("unix:/"+t.Name(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	a.open = func(context.Context) (net.Conn, error) { return nil, os.NewSyscallError("connect", syscall.EACCES) }
	if _, err := a.connect(t.Context(), false); err == nil || !strings.Contains(err.Error(), "the agent's --socket-group and --socket-mode say who may open the socket") {
		t.Error(err)
	}
}

// pipes is a listener in memory, in whose connections time can be virtual.
type pipes struct {
	come  chan net.Conn
	close func()
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, open := <-p.come; open {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// TestHangingAgent: the first request waits for an agent that hangs, for the wait of its rule and the time to answer. The others are refused at once,
// but for one each second, which asks. They are served once the agent answers.
func TestHangingAgent(t *testing.T) {
	for name, c := range map[string]struct {
		settings map[string]interface{}
		body     string
		patience time.Duration
	}{
		"without a wait": {map[string]interface{}{"key": "a"}, "", silence},
		"with a wait":    {map[string]interface{}{"key": "a", "wait": "20s"}, "", 20*time.Second + silence},
		"no body came":   {map[string]interface{}{"key": "{json.id}"}, "", silence},
		"with a body":    {map[string]interface{}{"key": "{json.id}", "body_timeout": "3s"}, `{"id":1}`, 3*time.Second + silence},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testHangingAgent(t, c.settings, c.body, c.patience) })
		})
	}
}

func testHangingAgent(t *testing.T, settings map[string]interface{}, body string, patience time.Duration) {
	locker := redlocktest.New(t)
	come := make(chan net.Conn)
	listener := &pipes{come, sync.OnceFunc(func() { close(come) })}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- wire.New(locker).Serve(ctx, time.Second, listener) }()
	a, err := agentAt("unix:/"+t.Name(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		a.drop()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		time.Sleep(3 * idleAfter) // until nothing sweeps
	}()
	var hangs atomic.Bool
	a.open = func(context.Context) (net.Conn, error) {
		here, there := net.Pipe()
		if hangs.Load() {
			go func() { _, _ = io.Copy(io.Discard, there) }()
		} else {
			come <- there
		}
		return here, nil
	}
	r, err := newRule(a, settings)
	if err != nil {
		t.Fatal(err)
	}
	h := &handler{name: "m", next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), agent: a, rule: r}
	require := func(what string, status int, least, most time.Duration) {
		t.Helper()
		w := httptest.NewRecorder()
		began := time.Now()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(w, r)
		if took := time.Since(began); w.Code != status || took < least || took > most {
			t.Errorf("%s: status %d after %v, want %d after %v to %v", what, w.Code, took, status, least, most)
		}
	}
	if err := r.load(ctx, a); err != nil {
		t.Fatal(err)
	}
	a.drop()
	hangs.Store(true)
	require("the first request", http.StatusConflict, patience, patience)
	require("the one that finds out", http.StatusConflict, loadWithin, loadWithin)
	for range 3 {
		require("the next one", http.StatusConflict, 0, 0)
	}
	time.Sleep(askAgain)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		require("one that asks", http.StatusConflict, loadWithin, loadWithin)
	}()
	synctest.Wait()
	require("one beside it", http.StatusConflict, 0, 0)
	<-asked
	hangs.Store(false)
	require("one that comes too early", http.StatusConflict, 0, 0)
	time.Sleep(askAgain)
	after := http.StatusOK
	if settings["key"] == "{json.id}" && body == "" {
		after = http.StatusBadRequest // says the agent
	}
	require("after the agent has gone on", after, 0, 0)
}

// TestPanicWhoAsks: after one that asks whether the agent still hangs has panicked, the next one asks.
func TestPanicWhoAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{hangs: true}
		func() {
			defer func() { _ = recover() }()
			_ = a.enter(func() error { panic("ask") })
		}()
		if err := a.enter(nil); err != errSilent {
			t.Errorf("at once: %v, want %v", err, errSilent)
		}
		time.Sleep(askAgain)
		if err := a.enter(func() error { return nil }); err != nil || a.hangs {
			t.Errorf("after a second: %v, it hangs: %v", err, a.hangs)
		}
	})
}
