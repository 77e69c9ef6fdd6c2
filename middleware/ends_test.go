package middleware_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestEndsInDocument: however a lock ends, the log, the trace, the Observers and the client are told what the table of docs/operations.md says.
func TestEndsInDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Lost leases\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| (.*) \| (.*) ?\| (yes|no|as an outcome, and in the trace) \| (the response|500) \|$`).FindAllStringSubmatch(section, -1)
	type ends func(t *testing.T, net *simnet.Net, l *redlock.Locker, turn *middleware.Turn)
	each := func(do func(*simnet.Server)) ends {
		return func(_ *testing.T, net *simnet.Net, _ *redlock.Locker, _ *middleware.Turn) {
			for _, s := range net.Servers {
				do(s)
			}
		}
	}
	taken := func(_ *testing.T, net *simnet.Net, _ *redlock.Locker, turn *middleware.Turn) {
		for _, s := range net.Servers {
			s.Give(turn.Key, "another", time.Hour)
		}
	}
	cases := []struct {
		row  int
		name string // as part of the row's text
		end  ends
		stay bool // the handler stays until the lock has ended
		log  string
	}{
		{0, "It was released.", each(func(*simnet.Server) {}), false, ""},
		{1, "too few masters confirm", each((*simnet.Server).Hang), false, "no quorum"},
		{2, "had lost the key", each((*simnet.Server).Flush), false, "lease expired before unlock"},
		{2, "had lost the key", taken, false, "lock has another owner"},
		{3, "Too few masters renewed it", each((*simnet.Server).Hang), true, "lease lost"},
		{3, "others had the key", taken, true, "lease lost"},
		{4, "An operator released it", func(t *testing.T, net *simnet.Net, _ *redlock.Locker, turn *middleware.Turn) {
			if err := inspect.Force(t.Context(), net.Locker(t), turn.Key, 0, turn.Lock.Fence()); err != nil {
				t.Error(err)
			}
		}, true, "released by force"},
		{5, "`max_hold` is too short", each(func(*simnet.Server) {}), true, "held for its max hold"},
		{6, "closed its `Locker`", func(t *testing.T, _ *simnet.Net, l *redlock.Locker, _ *middleware.Turn) {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}, true, "locker is closed"},
	}
	if last := cases[len(cases)-1].row; len(rows) != last+1 {
		t.Fatalf("the table has %d rows that can be read, want %d", len(rows), last+1)
	}
	for _, c := range cases {
		t.Run(c.name+" "+c.log, func(t *testing.T) {
			row := rows[c.row]
			if !strings.Contains(row[1], c.name) || !strings.Contains(row[2], c.log) {
				t.Fatalf("the row is %q, want %q with %q", row, c.name, c.log)
			}
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				var log safeBuffer
				logger := slog.New(slog.NewJSONHandler(&log, nil))
				var told atomic.Int64
				l, err := redlock.New(net.Masters(), redlock.WithLogger(logger), redlock.WithObserver(redlock.Observer{LeaseLost: func(error) { told.Add(1) }}))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				n := &notes{}
				rule := middleware.Rule{Observer: n, Logger: logger, MaxHold: time.Hour}
				if c.row == 5 {
					rule.MaxHold = time.Second
				}
				ctx, end := startSpan(t)
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)
				r.Header.Set("Order", "42")
				w := httptest.NewRecorder()
				orders(l, func(w http.ResponseWriter, r *http.Request) {
					turn, _ := middleware.TurnFromContext(r.Context())
					c.end(t, net, l, &turn)
					if c.stay {
						<-r.Context().Done()
					} else {
						ok(w, r)
					}
				}, rule).ServeHTTP(w, r)
				spans := end()
				time.Sleep(time.Second) // the log and the Observer are told
				for _, s := range net.Servers {
					s.Resume()
				}

				var said []string
				for _, line := range logged(t, &log) {
					if text, _ := line["error"].(string); line["key_hash"] != nil {
						said = append(said, text)
					}
				}
				if all := strings.Join(said, "\n"); c.log == "" && all != "" || !strings.Contains(all, c.log) {
					t.Errorf("the log says %q, want %q", all, c.log)
				}
				lost, counted := 1, 1
				switch row[3] {
				case "no":
					lost, counted = 0, 0
				case "as an outcome, and in the trace":
					counted = 0
				}
				outcome := 0
				for _, d := range n.done {
					if d.outcome == middleware.OutcomeLost {
						outcome++
					}
				}
				events := 0
				for _, e := range spans[len(spans)-1].Events {
					if e.Name == "redlock.lost" {
						events++
					}
				}
				if outcome != lost || int(told.Load()) != counted || events != lost {
					t.Errorf("%d outcomes, %d calls of the Observer, %d events of the trace, want %d, %d, %d", outcome, told.Load(), events, lost, counted, lost)
				}
				if status := map[string]int{"the response": http.StatusOK, "500": http.StatusInternalServerError}[row[4]]; w.Code != status {
					t.Errorf("the client gets %d, want %d", w.Code, status)
				}
			})
		})
	}
}
