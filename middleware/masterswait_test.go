package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// guard is how long a server that has restarted has no vote.
const guard = 11 * time.Second

// probe is how long it takes at most to notice that masters are back: a pause, and the time in which a connection is given up.
const probe = 2 * time.Second

// outages are what leaves a process without a quorum.
var outages = map[string]struct {
	begin, end func(*simnet.Server)
	renews     bool          // the locks that are held
	votes      time.Duration // after the end
}{
	"refuse":    {(*simnet.Server).Kill, (*simnet.Server).Restart, false, guard},
	"hang":      {(*simnet.Server).Hang, (*simnet.Server).Resume, false, 0},
	"full":      {(*simnet.Server).Fill, func(s *simnet.Server) { s.Refuse("") }, true, 0},
	"restarted": {(*simnet.Server).Reboot, (*simnet.Server).Reboot, false, guard},
}

// request has a handler serve a request for an order, and returns how long that took, and how it ended: with an outcome if it was served,
// and else with its status.
func request(t *testing.T, h http.Handler, order string) (took time.Duration, ended string) {
	ctx, noted := middleware.NoteTurn(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
	r.Header.Set("Order", order)
	w, start := httptest.NewRecorder(), time.Now()
	h.ServeHTTP(w, r)
	took = time.Since(start)
	if turn, _ := noted(); w.Code == http.StatusOK {
		return took, string(turn.Outcome)
	}
	return took, fmt.Sprint(w.Code)
}

// TestPassInAnOutage: once masters are known to be away for longer than a rule waits for them, its requests pass without any wait, whatever the
// masters do. None passes beside a lock that this process holds, nor after a probe has found that they are back.
func TestPassInAnOutage(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				l := net.Locker(t)
				h := orders(l, ok, middleware.Rule{Wait: 3 * time.Second, OnNoQuorum: middleware.Pass})
				time.Sleep(time.Second)
				hold(t, l, "order:held")
				away := time.Now()
				for _, s := range net.Servers[1:] {
					outage.begin(s)
				}
				took, ended := request(t, h, "first")
				if known := name == "restarted"; ended != "no_quorum" || !known && took < time.Second || took > 3*time.Second/2 {
					t.Errorf("the first request: %s after %v, want it to pass after a second", ended, took)
				}
				beside := func() {
					if took, ended := request(t, h, "held"); ended != "423" || took < 3*time.Second {
						t.Errorf("beside a lock of this process: %s after %v, want 423", ended, took)
					}
				}
				beside()
				end := away.Add(2 * time.Minute) // long enough for connections to be given up
				if name == "restarted" {
					end = away.Add(guard - time.Second)
				}
				for time.Now().Before(end) {
					var some sync.WaitGroup
					for _, order := range []string{"alone", "together", "together", "together"} {
						some.Go(func() {
							if took, ended := request(t, h, order); ended != "no_quorum" || took > time.Millisecond {
								t.Errorf("%v after the begin: %s after %v, want it to pass at once", time.Since(away), ended, took)
							}
						})
					}
					some.Wait()
					time.Sleep(97 * time.Millisecond)
				}
				if outage.renews {
					beside()
				}
				back := time.Now().Add(outage.votes)
				for _, s := range net.Servers[1:] {
					outage.end(s)
				}
				for ended := ""; ended != "acquired"; time.Sleep(97 * time.Millisecond) {
					if _, ended = request(t, h, "any"); time.Since(back) > probe {
						t.Fatalf("%v after the return: %s", time.Since(back), ended)
					}
				}
				t.Logf("served with locks %v after the return", time.Since(back))
				for range 100 {
					if _, ended := request(t, h, "any"); ended != "acquired" {
						t.Fatalf("%v after the return: %s", time.Since(back), ended)
					}
				}
			})
		})
	}
}

// TestMastersWait: each rule waits for masters for as long as it says.
func TestMastersWait(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := net.Locker(t, redlock.WithMastersWait(time.Hour))
		time.Sleep(time.Second)
		for _, s := range net.Servers[1:] {
			s.Hang()
		}
		_, _ = l.TryLock(t.Context(), "any")
		var rules sync.WaitGroup
		for set, want := range map[time.Duration]time.Duration{-1: 0, 0: middleware.DefaultMastersWait, 5 * time.Second: 5 * time.Second, time.Minute: 10 * time.Second} {
			rules.Go(func() {
				took, ended := request(t, orders(l, ok, middleware.Rule{Wait: 10 * time.Second, MastersWait: set}), fmt.Sprint(set))
				if ended != "409" || took < want || took > want+time.Second/2 {
					t.Errorf("with %v: %s after %v, want 409 after %v", set, ended, took, want)
				}
			})
		}
		rules.Wait()
	})
}
