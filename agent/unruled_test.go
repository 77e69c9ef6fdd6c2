package agent_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/verdicts"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// seen is what an Observer has seen of a rule, or of a path that counts as one.
type seen struct {
	middleware.Observer // other events don't happen

	mu                        sync.Mutex
	can                       middleware.Possible
	done                      []middleware.Outcome
	waiting, waited, acquired int
	holding                   int
}

func (s *seen) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *seen) Begin(_ string, can middleware.Possible) { s.note(func() { s.can = can }) }

func (s *seen) Waits(_ string, n int) { s.note(func() { s.waiting += n; s.waited += max(n, 0) }) }

func (s *seen) Acquired(string, time.Duration) { s.note(func() { s.acquired++; s.holding++ }) }

func (s *seen) Done(_ string, outcome middleware.Outcome, held time.Duration) {
	s.note(func() {
		s.done = append(s.done, outcome)
		if held > 0 {
			s.holding--
		}
	})
}

// watched is an agent in virtual time, with all that it has logged and that its Observers have seen.
type watched struct {
	t      *testing.T
	net    *simnet.Net
	locker *redlock.Locker
	agent  *agent.Agent
	client *http.Client
	log    bytes.Buffer
	seen   map[string]*seen
}

// maxWaiters is how many may wait for a key.
const maxWaiters = 3

func watch(t *testing.T, test func(w *watched), opts ...agent.Option) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		w := &watched{t: t, net: net, locker: net.Locker(t, redlock.WithMaxWaiters(maxWaiters)), seen: make(map[string]*seen)}
		observers := func(rule string) (middleware.Observer, func()) {
			w.seen[rule] = new(seen)
			return w.seen[rule], func() {}
		}
		w.agent = agent.New(w.locker, append(opts, agent.WithLogger(slog.New(slog.NewJSONHandler(&w.log, nil))), agent.WithObservers(observers))...)
		p := newPipes()
		w.client = p.client(t)
		serveOn(t, w.agent, p)
		test(w)
	})
}

// lines returns the log's lines about requests.
func (w *watched) lines() (lines []map[string]any) {
	w.t.Helper()
	for decoder := json.NewDecoder(bytes.NewReader(w.log.Bytes())); decoder.More(); {
		line := make(map[string]any)
		if err := decoder.Decode(&line); err != nil {
			w.t.Fatal(err)
		}
		if line["rule"] != nil {
			lines = append(lines, line)
		}
	}
	return lines
}

// ask sends a request for the key s3cret, with more fields. The request holds the lock until its end, or was refused.
func (w *watched) ask(more string) *held {
	w.t.Helper()
	return post(w.t, w.client, "/v1/lock", `{"key":"s3cret"`+more+`}`)
}

// waiting sends a request for a key that another holder has, and returns when it waits.
func (w *watched) waiting() *wire {
	w.t.Helper()
	if _, err := w.locker.TryLock(w.t.Context(), "s3cret", redlock.WithMaxHold(0)); err != nil {
		w.t.Fatal(err)
	}
	return w.raw("/v1/lock", `{"key":"s3cret"}`+"\n")
}

// raw sends the beginning of a request, whose body stays open.
func (w *watched) raw(path, body string) *wire {
	w.t.Helper()
	c := dialWire(w.t, w.client)
	go func() { // the agent may not read all of it
		_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n", path)
		if body != "" {
			_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", len(body), body)
		}
	}()
	synctest.Wait()
	return c
}

// hang makes the masters hang, and the agent notice.
func (w *watched) hang() {
	for _, s := range w.net.Servers {
		s.Hang()
	}
	_, _ = w.locker.TryLock(w.t.Context(), "any")
}

func (w *watched) answered(c *wire, status int) {
	w.t.Helper()
	if response := c.response(); response.StatusCode != status {
		w.t.Errorf("status %d, want %d", response.StatusCode, status)
	}
}

// TestOutcomes: each end of a request has its outcome in the metrics, from the start, and in the log a line with the outcome, if it is worth one. No
// line has the key.
func TestOutcomes(t *testing.T) {
	const refused, lost, found = "request is refused", "request lost its lock after its response had begun", "lock was lost before the request ended: another request with the same key may have run at the same time"
	full := agent.WithMaxClients(1)
	for path, tests := range map[string][]struct {
		name    string
		do      func(w *watched)
		outcome middleware.Outcome
		level   string // of the line; "" for no line
		message string
		keyed   bool // the line has the hash of the key
		opts    []agent.Option
	}{
		"/v1/lock": {
			{name: "released", do: func(w *watched) { h := w.ask(""); h.first(); h.end() }, outcome: "acquired"},
			{name: "left", do: func(w *watched) { h := w.ask(""); h.first(); h.close(); time.Sleep(longTTL) }, outcome: "acquired"},
			{name: "held", do: func(w *watched) { _ = w.waiting().Close(); w.forget(); w.ask(`,"try":true`) }, outcome: "held", level: "INFO", message: refused, keyed: true},
			{name: "waited", do: func(w *watched) { _ = w.waiting().Close(); w.forget(); w.ask(`,"wait":"3s"`) }, outcome: "held", level: "INFO", message: refused, keyed: true},
			{name: "no quorum", do: func(w *watched) { w.hang(); w.ask(`,"try":true`) }, outcome: "no_quorum", level: "WARN", message: refused, keyed: true},
			{name: "done", do: func(w *watched) { w.done(`,"once":"1h"`, "done"); w.ask(`,"once":"1h"`) }, outcome: "replayed"},
			{name: "done in the period", do: func(w *watched) { w.done(`,"once_per":"1h"`, "done"); w.ask(`,"once_per":"1h"`) }, outcome: "replayed"},
			{name: "can't be read", do: func(w *watched) {
				w.done(`,"once":"1h"`, "done "+strings.Repeat("x", 5<<10)) // too long for a refusal, so it is recalled
				for _, s := range w.net.Servers {
					s.Forge(func(cmd *simnet.Command) bool {
						if cmd.Op == simnet.Recall {
							cmd.Key = "nowhere"
						}
						return false
					})
				}
				w.ask(`,"once":"1h","wait":"1s"`)
			}, outcome: "unreadable", level: "INFO", message: refused, keyed: true},
			{name: "max_hold", do: func(w *watched) { h := w.ask(`,"max_hold":"2s"`); h.first(); time.Sleep(3 * time.Second); h.end() }, outcome: "lost", level: "WARN", message: lost, keyed: true},
			{name: "heartbeat", do: func(w *watched) { h := w.ask(`,"heartbeat":"2s"`); h.first(); time.Sleep(longTTL); h.close() }, outcome: "lost", level: "WARN", message: lost, keyed: true},
			{name: "expired", do: func(w *watched) { h := w.ask(""); h.first(); w.hang(); time.Sleep(longTTL); h.close() }, outcome: "lost", level: "WARN", message: lost, keyed: true},
			{name: "gone", do: func(w *watched) {
				h := w.ask("")
				h.first()
				for _, s := range w.net.Servers {
					s.Give("s3cret", "another", time.Hour)
				}
				h.end()
			}, outcome: "lost", level: "ERROR", message: found, keyed: true},
			{name: "left the line", do: func(w *watched) { _ = w.waiting().Close() }, outcome: "canceled"},
			{name: "stops", do: func(w *watched) { c := w.waiting(); w.agent.Retire(); w.answered(c, 503) }, outcome: "stopping"},
			{name: "stopping", do: func(w *watched) {
				h := w.ask("")
				h.first()
				w.agent.Retire()
				w.answered(w.raw("/v1/lock", `{"key":"k"}`+"\n"), 503)
				synctest.Wait()
				h.end()
				w.seen["/v1/lock"].note(func() { w.seen["/v1/lock"].done = w.seen["/v1/lock"].done[:1] }) // not the end of the one who keeps the agent from its end
			}, outcome: "stopping"},
			{name: "closed", do: func(w *watched) { _ = w.locker.Close(); w.ask("") }, outcome: "failed", level: "WARN", message: refused, keyed: true},
			{name: "full", do: func(w *watched) { w.waiting(); w.ask("") }, outcome: "failed", level: "WARN", message: refused, opts: []agent.Option{full}},
			{name: "one waits too many", do: func(w *watched) {
				for range 1 + maxWaiters { // one holds the lock
					go func() { _, _ = w.locker.Lock(w.t.Context(), "s3cret") }()
				}
				synctest.Wait()
				w.answered(w.raw("/v1/lock", `{"key":"s3cret"}`+"\n"), 503)
			}, outcome: "too_many_waiters", level: "WARN", message: refused, keyed: true},
			{name: "no JSON", do: func(w *watched) { post(w.t, w.client, "/v1/lock", "s3cret") }, outcome: "bad_key", level: "INFO", message: refused},
			{name: "no such field", do: func(w *watched) { w.ask(`,"s3cret":1`) }, outcome: "bad_key", level: "INFO", message: refused},
			{name: "wrong limit", do: func(w *watched) { w.ask(`,"ttl":"1000h"`) }, outcome: "bad_key", level: "INFO", message: refused, keyed: true},
			{name: "slow", do: func(w *watched) { w.answered(w.raw("/v1/lock", `{"key":"s3cret"`), 408) }, outcome: "body_timeout", level: "INFO", message: refused},
			{name: "long", do: func(w *watched) { w.answered(w.raw("/v1/lock", strings.Repeat("s3cret", 20<<10)), 431) }, outcome: "body_too_large", level: "INFO", message: refused},
			{name: "empty", do: func(w *watched) { c := w.raw("/v1/lock", ""); c.end(); w.answered(c, 400) }, outcome: "body_broken", level: "INFO", message: refused},
		},
		"/v1/turn": {
			{name: "stopping", do: func(w *watched) {
				h := w.ask("")
				h.first()
				w.agent.Retire()
				w.answered(w.raw("/v1/turn", "{}\n{}\n"), 503)
			}, outcome: "stopping"},
			{name: "full", do: func(w *watched) { w.waiting(); post(w.t, w.client, "/v1/turn", "{}\n{}") }, outcome: "failed", level: "WARN", message: refused, opts: []agent.Option{full}},
			{name: "no rule", do: func(w *watched) { post(w.t, w.client, "/v1/turn", "s3cret\n{}") }, outcome: "bad_key", level: "INFO", message: refused},
			{name: "slow", do: func(w *watched) { w.answered(w.raw("/v1/turn", "s3cret"), 408) }, outcome: "body_timeout", level: "INFO", message: refused},
			{name: "long", do: func(w *watched) { w.answered(w.raw("/v1/turn", strings.Repeat("s3cret", 20<<10)), 431) }, outcome: "body_too_large", level: "INFO", message: refused},
			{name: "empty", do: func(w *watched) { c := w.raw("/v1/turn", ""); c.end(); w.answered(c, 400) }, outcome: "body_broken", level: "INFO", message: refused},
		},
	} {
		t.Run(path, func(t *testing.T) {
			var mu sync.Mutex
			could, did := make(map[middleware.Outcome]bool), make(map[middleware.Outcome]bool)
			t.Cleanup(func() {
				if a, b := slices.Sorted(maps.Keys(could)), slices.Sorted(maps.Keys(did)); !slices.Equal(a, b) {
					t.Errorf("the metrics begin with %v, and the outcomes are %v", a, b)
				}
			})
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					watch(t, func(w *watched) {
						time.Sleep(time.Second) // the masters have answered
						test.do(w)
						synctest.Wait()
						time.Sleep(2 * time.Second) // the client may take a moment to end its request, and the masters to reply
						s := w.seen[path]
						s.mu.Lock()
						defer s.mu.Unlock()
						mu.Lock()
						defer mu.Unlock()
						for _, outcome := range s.can.Outcomes {
							could[outcome] = true
						}
						did[test.outcome] = true
						if !slices.Equal(s.done, []middleware.Outcome{test.outcome}) || s.holding != 0 || test.name != "full" && s.waiting != 0 {
							t.Errorf("%v, %d hold, %d wait; want %s", s.done, s.holding, s.waiting, test.outcome)
						}
						lines := w.lines()
						switch {
						case strings.Contains(w.log.String(), "s3cret"):
							t.Errorf("the log has the key: %s", w.log.String())
						case test.level == "" && len(lines) > 0, test.level != "" && len(lines) != 1:
							t.Errorf("logged %v", lines)
						case test.level == "":
						case lines[0]["level"] != test.level, lines[0]["msg"] != test.message, lines[0]["rule"] != path, test.message != found && lines[0]["outcome"] != string(test.outcome),
							(lines[0]["key_hash"] == lockname.Hash("s3cret")) != test.keyed:
							t.Errorf("logged %v, want %s %q of %s", lines[0], test.level, test.message, test.outcome)
						}
					}, test.opts...)
				})
			}
		})
	}
}

// forget forgets what the Observer for /v1/lock has seen, once it has seen the end of all requests.
func (w *watched) forget() {
	synctest.Wait()
	s := w.seen["/v1/lock"]
	s.note(func() { s.done = nil })
}

// done does the work of a key once.
func (w *watched) done(more, last string) {
	w.t.Helper()
	h := w.ask(more)
	h.first()
	if _, err := io.WriteString(h.body, last+"\n"); err != nil {
		w.t.Fatal(err)
	}
	h.end()
	w.forget()
}

// TestVerdictsCount: whatever the library says of a lock that can't be had is among the outcomes with which the metrics begin.
func TestVerdictsCount(t *testing.T) {
	watch(t, func(w *watched) {
		for _, v := range verdicts.All {
			if !slices.Contains(w.seen["/v1/lock"].can.Outcomes, middleware.Outcome(v.Outcome)) {
				t.Errorf("there is no series for %s", v.Outcome)
			}
		}
	})
}

// TestWaits: those who wait count while they do, and those who don't wait never.
func TestWaits(t *testing.T) {
	watch(t, func(w *watched) {
		s := w.seen["/v1/lock"]
		waits := w.waiting()
		if s.waiting != 1 || s.can.Concurrency != 1 || !s.can.Waits {
			t.Errorf("%+v", s)
		}
		w.ask(`,"try":true`)
		w.ask(`,"wait":"0s"`)
		_ = waits.Close()
		synctest.Wait()
		if s.waiting != 0 || s.waited != 1 || s.acquired != 0 {
			t.Errorf("%d wait, %d have waited, %d were acquired", s.waiting, s.waited, s.acquired)
		}
	})
}

// TestLinesOfAStorm: of 430 clients that are refused in 210 s, each 10 s leave a line, and the lines say how many there were.
func TestLinesOfAStorm(t *testing.T) {
	watch(t, func(w *watched) {
		w.hang()
		const clients = 430
		began := time.Now()
		for i := range clients {
			time.Sleep(time.Until(began.Add(time.Duration(i) * 210 * time.Second / clients)))
			w.ask(`,"try":true`).close()
		}
		lines, all := w.lines(), 0
		for _, line := range lines {
			missed, _ := line["not_logged"].(float64)
			all += 1 + int(missed)
		}
		if s := w.seen["/v1/lock"]; len(lines) < 20 || len(lines) > 22 || all < clients-25 || len(s.done) != clients {
			t.Errorf("%d lines about %d clients, and %d in the metrics", len(lines), all, len(s.done))
		}
	})
}
