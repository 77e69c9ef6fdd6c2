package plugintest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// atOnce is how many requests share the slots.
const atOnce = 3

// slotted is an upstream that counts how many requests are inside, and for how long.
type slotted struct {
	t    testing.TB
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

// ShareSlots has so many clients of a Caddy with a site, of two net/http servers and of the plugin share slots: no more requests are
// inside than there are slots, no two have the same, and all are served.
func ShareSlots(t *testing.T, p *Plugin, clients int, caddy func(servers []*redistest.Server, site string) (url string)) {
	t.Helper()
	s := &slotted{t: t, hold: 30 * time.Millisecond, slots: make(map[string]bool), coming: clients}
	serve := func(h http.Handler) *httptest.Server {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server
	}
	servers := redistest.Start(t, 3)
	open := func() *redlock.Locker {
		l, err := redlock.Open(redistest.URLs(servers), redlock.WithRestartGuard(0), redlock.WithTimeout(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	hosts := []string{caddy(servers, fmt.Sprintf("redlock order:{path.1} {\nconcurrency %d\nwait 5m\nmasters_wait 5m\n}\nreverse_proxy %s", atOnce, serve(s).Listener.Addr()))}
	for range 2 {
		hosts = append(hosts, serve(middleware.New(open(), "order:{path.1}", middleware.Rule{Concurrency: []int{atOnce}, Wait: 5 * time.Minute, MastersWait: 5 * time.Minute})(s)).URL)
	}
	a := &agentOf{t: t, locker: open(), network: "unix", listen: filepath.Join(t.TempDir(), "s")}
	a.address = "unix:" + a.listen
	a.start()
	hosts = append(hosts, serve(handler(t, p, a, s.ServeHTTP, "concurrency", strconv.Itoa(atOnce), "wait", "5m", "masters-wait", "5m")).URL)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			r, err := http.NewRequest(http.MethodPost, hosts[i%len(hosts)]+"/orders/42/pay", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header = http.Header{"Redlock-Slot": {"0"}, "redlock_slot": {"1"}}
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("request %d: %s, %v", i, response.Status, err)
			}
		})
	}
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.full || s.served != clients {
		t.Errorf("%d of %d served; so many at a time as may: %v", s.served, clients, s.full)
	}
	t.Logf("%d were inside for %.1f %% of %v in which some waited", atOnce, 100*s.whole.Seconds()/s.busy.Seconds(), s.busy)
}
