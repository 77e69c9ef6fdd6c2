package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/traefik"
)

const atOnce = 3

// slotted is an upstream that counts how many requests are inside, and for how long.
type slotted struct {
	t    *testing.T
	hold time.Duration

	mu      sync.Mutex
	coming  int             // requests that have not been inside yet
	slots   map[string]bool // of those inside
	served  int
	full    bool          // as many as may were inside
	changed time.Time     // when anything above did
	busy    time.Duration // in which some waited, after the first
	whole   time.Duration // in which so many were inside
}

// note counts the time since the last change.
func (s *slotted) note() {
	now := time.Now()
	if since := now.Sub(s.changed); s.full && s.coming > 0 {
		s.busy += since
		if len(s.slots) == atOnce {
			s.whole += since
		}
	}
	s.changed = now
}

func (s *slotted) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.note()
	slot := r.Header.Get("Redlock-Slot")
	if n, err := strconv.Atoi(slot); err != nil || n < 0 || n >= atOnce || len(r.Header.Values("Redlock-Slot")) != 1 || s.slots[slot] {
		s.t.Errorf("slots %q beside %v", r.Header.Values("Redlock-Slot"), s.slots)
	}
	s.slots[slot] = true
	s.coming--
	s.full = s.full || len(s.slots) == atOnce
	s.mu.Unlock()
	time.Sleep(s.hold)
	s.mu.Lock()
	s.note()
	delete(s.slots, slot)
	s.served++
	s.mu.Unlock()
}

// TestSlots has clients of Caddy, of two net/http servers and of Traefik's plugin share slots: no more requests are inside than there are
// slots, no two have the same, and all are served.
func TestSlots(t *testing.T) {
	t.Parallel()
	clients := 200
	if testing.Short() {
		clients = 40
	}
	s := &slotted{t: t, hold: 30 * time.Millisecond, slots: make(map[string]bool), coming: clients}
	backend := httptest.NewServer(s)
	t.Cleanup(backend.Close)
	servers := redistest.Start(t, 3)
	hosts := []string{
		runCaddy(t, caddyfile(mastersOption(servers, "timeout "+calm.String()), fmt.Sprintf(`
			redlock order:{path.1} {
				concurrency %d
				wait 5m
			}
			reverse_proxy %s`, atOnce, backend.Listener.Addr()))).url,
		pluginServer(t, servers, s),
	}
	for range 2 {
		rule := middleware.New(neverLocker(t, servers), "order:{path.1}", middleware.Rule{Concurrency: []int{atOnce}, Wait: 5 * time.Minute})
		server := httptest.NewServer(rule(s))
		t.Cleanup(server.Close)
		hosts = append(hosts, server.URL)
	}
	var all []*http.Request
	for i := range clients {
		all = append(all, request(hosts[i%len(hosts)]+"/orders/42/pay", "Redlock-Slot", "0", "redlock_slot", "1"))
	}
	for _, a := range sendAll(t, all...)() {
		requireStatus(t, a, http.StatusOK)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.full || s.served != clients {
		t.Errorf("%d of %d served; so many at a time as may: %v", s.served, clients, s.full)
	}
	t.Logf("%d were inside for %.1f %% of %v in which some waited", atOnce, 100*s.whole.Seconds()/s.busy.Seconds(), s.busy)
}

// pluginServer serves with Traefik's plugin, compiled, and an agent.
func pluginServer(t *testing.T, servers []*redistest.Server, next http.Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	locker := neverLocker(t, servers)
	go func() {
		defer close(ended)
		if err := agent.New(locker).Serve(ctx, 0, l); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	config := traefik.CreateConfig()
	config.Agent, config.Rule = "unix:"+socket, map[string]any{"key": "order:{path.1}", "concurrency": strconv.Itoa(atOnce), "wait": "5m"}
	h, err := traefik.New(t.Context(), next, config, "slots")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}
