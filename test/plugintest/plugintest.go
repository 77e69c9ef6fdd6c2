// Package plugintest tests the plugin for Traefik with a real agent on real redis-servers, compiled as well as interpreted by Yaegi.
package plugintest

import (
	"bytes"
	"context"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Plugin is a plugin as one Traefik has it.
type Plugin struct {
	// New returns a handler with these settings.
	New func(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error)
	// Log is what the plugin has logged.
	Log func() string
}

// bound is how long to wait for what happens eventually.
const bound = 30 * time.Second

// Run runs all tests. Each call of load returns a separate plugin, as if it ran in another Traefik.
func Run(t *testing.T, load func(testing.TB) *Plugin) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Plugin)
	}{
		{"OneAtATime", testOneAtATime},
		{"Slots", testSlots},
		{"Crowd", testCrowd},
		{"FenceIsOurs", testFence},
		{"Trailers", testTrailers},
		{"Bodies", testBodies},
		{"SlowBody", testSlowBody},
		{"Refusals", testRefusals},
		{"Signatures", testSignatures},
		{"SeveralKeys", testSeveralKeys},
		{"Labels", testLabels},
		{"ClientLeaves", testClientLeaves},
		{"ClientLeavesTheLine", testLeavesLine},
		{"Panic", testPanic},
		{"LongHold", testLongHold},
		{"AgentIsAway", testAway},
		{"AgentIsKilled", testKilled},
		{"AgentHangs", testHangs},
		{"AgentRestarts", testRestarts},
		{"AgentIsReplaced", testReplaced},
		{"PassesWholeBodies", testPasses},
		{"OtherAgents", testOthers},
		{"WrongSettings", testSettings},
		{"Reloads", testReloads},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, load(t)) })
	}
}

// Logged has the standard library's log, until the test ends, go to a text.
func Logged(t testing.TB) func() string {
	text := &safeBuffer{}
	log.SetOutput(text)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	return text.String
}

type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// NewBuffer returns a buffer for a log, and what reads it.
func NewBuffer() (w interface{ Write([]byte) (int, error) }, read func() string) {
	b := &safeBuffer{}
	return b, b.String
}

// Fill sets the fields of a plugin's configuration, which may be of an interpreted type, as Traefik does.
func Fill(config reflect.Value, settings map[string]any) {
	rest := map[string]any{}
	for name, value := range settings {
		field := config.Elem().FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) })
		if field.IsValid() {
			field.Set(reflect.ValueOf(value))
		} else {
			rest[name] = value
		}
	}
	config.Elem().FieldByName("Rule").Set(reflect.ValueOf(rest))
}

// handler returns a handler of the plugin for orders, with more settings by name and value.
func handler(t testing.TB, p *Plugin, a *agentOf, next http.HandlerFunc, more ...any) http.Handler {
	t.Helper()
	h, err := p.New(t.Context(), next, with(a, more...))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func with(a *agentOf, more ...any) map[string]any {
	settings := map[string]any{"agent": a.address, "key": "order:{path.1}"}
	for i := 0; i < len(more); i += 2 {
		settings[more[i].(string)] = more[i+1]
	}
	return settings
}

func nothing(http.ResponseWriter, *http.Request) {}

// pay sends a request for an order, and returns the response.
func pay(h http.Handler, order string, headers ...string) *httptest.ResponseRecorder {
	return payIn(context.Background(), h, order, headers...)
}

func payIn(ctx context.Context, h http.Handler, order string, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/orders/"+order, nil).WithContext(ctx)
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = []string{headers[i+1]}
	}
	h.ServeHTTP(w, r)
	return w
}

func want(t testing.TB, w *httptest.ResponseRecorder, status int, outcome string) {
	t.Helper()
	if w.Code != status || w.Header().Get("Redlock-Outcome") != outcome {
		t.Errorf("status %d %s, want %d %s: %s", w.Code, w.Header().Get("Redlock-Outcome"), status, outcome, w.Body)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// agentOf is an agent with its masters, which can be stopped and started.
type agentOf struct {
	t       testing.TB
	servers []*redistest.Server
	locker  *redlock.Locker
	network string
	listen  string
	address string
	token   string
	served  *agent.Agent
	end     func() // of the agent that serves
}

// newAgent starts an agent on three masters, on a Unix socket ("unix") or on TCP ("tcp").
func newAgent(t testing.TB, network string, token string) *agentOf {
	t.Helper()
	a := notStarted(t, network, token)
	a.start()
	return a
}

// notStarted returns an agent that is away.
func notStarted(t testing.TB, network, token string) *agentOf {
	t.Helper()
	a := &agentOf{t: t, servers: redistest.Start(t, 3), network: network, token: token}
	a.listen = filepath.Join(t.TempDir(), "s")
	a.address = "unix:" + a.listen
	if network == "tcp" {
		a.listen = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: redistest.FreePort(t)}).String()
		a.address = "http://" + a.listen
	}
	a.locker = newLocker(t, a.servers)
	return a
}

func newLocker(t testing.TB, servers []*redistest.Server) *redlock.Locker {
	t.Helper()
	locker, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	return locker
}

func (a *agentOf) start() {
	a.t.Helper()
	name := a.listen
	if a.network == "unix" {
		name += ".next"
	}
	listener, err := net.Listen(a.network, name)
	if err != nil {
		a.t.Fatal(err)
	}
	if u, ok := listener.(*net.UnixListener); ok { // which takes the place of the agent before
		u.SetUnlinkOnClose(false)
		if err := os.Rename(name, a.listen); err != nil {
			a.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	served := agent.New(a.locker, agent.WithToken(a.token))
	go func() {
		defer close(ended)
		_ = served.Serve(ctx, 0, listener) // an error says that it was killed
	}()
	a.served, a.end = served, func() { cancel(); <-ended }
	a.t.Cleanup(a.end)
}

// kill ends the agent as its death does: its connections break.
func (a *agentOf) kill() { a.end() }

// replace has another agent take the socket, as redlock agent --replace does: the one before serves those who hold its locks, and ends.
func (a *agentOf) replace() {
	before := a.served
	a.start()
	before.Retire()
}
