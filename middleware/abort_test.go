package middleware_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]middleware.Rule{"cancel": {OnClientAbort: middleware.Cancel}, "run to end": {}} {
		t.Run(name, func(t *testing.T) {
			l := newLocker(t, live)
			running, end, ended := make(chan context.Context, 1), make(chan bool), make(chan error, 1)
			var clientGone context.Context
			handler := orders(l, func(_ http.ResponseWriter, r *http.Request) {
				running <- r.Context()
				select {
				case <-r.Context().Done():
				case <-end:
				}
				ended <- context.Cause(r.Context())
			}, rule)
			server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				clientGone = r.Context()
				handler.ServeHTTP(w, r)
			}))
			req := newRequest(t, server.URL, "Order", "42")
			ctx, leave := context.WithCancel(req.Context())
			go func() {
				if resp, err := http.DefaultClient.Do(req.WithContext(ctx)); err == nil {
					_ = resp.Body.Close()
				}
			}()
			inside := receive(t, running, "the handler")
			leave()
			<-clientGone.Done()
			if name == "cancel" {
				<-inside.Done()
			} else {
				if _, err := l.TryLock(t.Context(), "order:42"); !errors.Is(err, redlock.ErrHeld) {
					t.Errorf("the lock was freed before the handler had returned: %v", err)
				}
				if inside.Err() != nil {
					t.Errorf("the handler's context has ended: %v", context.Cause(inside))
				}
				close(end)
			}
			if err := receive(t, ended, "the end of the handler"); (err == nil) != (name != "cancel") {
				t.Errorf("cause %v", err)
			}
			requireFree(t, l, "order:42")
		})
	}
}

// A request that runs to its end is bounded by max_hold, and by the lock of a rule around it.
func TestRunToEndEndsWithTheLease(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	inner := orders(l, func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		if cause := context.Cause(r.Context()); !errors.Is(cause, redlock.ErrLost) {
			t.Errorf("cause %v", cause)
		}
	}, middleware.Rule{OnClientAbort: "run"})
	around := middleware.New(l, "other:{header.Order}", middleware.Rule{MaxHold: time.Second, OnClientAbort: "run"})(inner)
	requireProblem(t, post(t, serve(t, around).URL, "Order", "42"), http.StatusInternalServerError, "lost")
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, ok, middleware.Rule{OnMissingKey: middleware.Pass}))
	upgrade := []string{"Order", "42", "Connection", "keep-alive, Upgrade", "Upgrade", "websocket"}
	requireProblem(t, post(t, server.URL, upgrade...), http.StatusForbidden, "upgrade")
	requireProblem(t, post(t, server.URL, append(upgrade, "Upgrade", "h2c")...), http.StatusForbidden, "upgrade")
	requireProblem(t, post(t, server.URL, upgrade[2:]...), http.StatusForbidden, "upgrade")
	connect := newRequest(t, server.URL, "Order", "42")
	connect.Method = http.MethodConnect
	requireProblem(t, do(t, connect), http.StatusForbidden, "upgrade")
	if got := post(t, server.URL, "Order", "42", "Upgrade", "websocket"); got.body != "served" { // without Connection: Upgrade it asks for nothing
		t.Errorf("without Connection: %d %s", got.StatusCode, got.body)
	}
	h2c := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			t.Error("the offer of h2c is still there")
		}
		ok(w, r)
	}, middleware.Rule{}))
	if got := post(t, h2c.URL, "Order", "42", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABk"); got.body != "served" {
		t.Errorf("h2c: %d %s", got.StatusCode, got.body)
	}
	allowed := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		if offer := r.Header.Get("Upgrade"); offer != "" && offer != "WebSocket" {
			t.Errorf("the offer of %q is still there", offer)
		}
		ok(w, r)
	}, middleware.Rule{AllowUpgrade: true}))
	for offers, want := range map[string]string{"WebSocket": "served", "WebSocket, h2c": "served", "h2c": "served", "other": "", "WebSocket, other": "", "TLS/1.0": ""} {
		got := post(t, allowed.URL, "Order", "42", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", offers, "HTTP2-Settings", "AAMAAABk")
		if want == "" {
			requireProblem(t, got, http.StatusForbidden, "upgrade")
		} else if got.body != want {
			t.Errorf("allowed, %s: %d %s", offers, got.StatusCode, got.body)
		}
	}
	for protocol, status := range map[string]int{"websocket": http.StatusOK, "": http.StatusForbidden, "connect-udp": http.StatusForbidden} {
		r, w := keyRequest("/ws", "Order", "42"), httptest.NewRecorder() // as WebSocket over HTTP/2
		r.Method, r.Header[":protocol"] = http.MethodConnect, []string{protocol}
		if orders(l, ok, middleware.Rule{AllowUpgrade: true}).ServeHTTP(w, r); w.Code != status {
			t.Errorf("CONNECT of %q: %d %s", protocol, w.Code, w.Body)
		}
	}
}

// A dry run serves all requests with their whole bodies, even those that would have been refused.
func TestDryRun(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "order:42")
	var log safeBuffer
	server := serve(t, middleware.New(l, "order:{body.id}", middleware.Rule{DryRun: true, MaxBody: 100, Logger: slog.New(slog.NewTextHandler(&log, nil))})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		if turn.Lock != nil || r.Header.Get("Fencing-Token") != "" {
			t.Error("a lock was taken")
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("%s: %v", turn.Outcome, err)
		}
		_, _ = io.WriteString(w, string(turn.Outcome)+" "+turn.Key+" "+string(body))
	})))
	large := `{"id":1,"x":"` + strings.Repeat("x", 20_000) + `"}`
	for _, c := range []struct {
		body io.Reader
		want string
	}{
		{strings.NewReader(`{"id":42}`), `dry_run order:42 {"id":42}`},
		{strings.NewReader(`{}`), "missing_key  {}"},
		{strings.NewReader(`{"id":1,"id":2}`), `bad_key  {"id":1,"id":2}`},
		{strings.NewReader(large), "body_too_large  " + large},
		{unknownLength{strings.NewReader(large)}, "body_too_large  " + large},
	} {
		if got := postBody(t, server.URL, jsonType, c.body); got.body != c.want {
			t.Errorf("%d %.200q, want %.200q", got.StatusCode, got.body, c.want)
		}
	}
	if n := strings.Count(log.String(), "dry run: "); n != 4 {
		t.Errorf("%d lines in the log, want 4:\n%s", n, &log)
	}
}

// A dry run also logs the requests that would have waited, or been refused because of another one.
func TestDryRunOfTwo(t *testing.T) {
	t.Parallel()
	const order = "order-Zm9vYmFy" // unlike a number, it can't be in the log by chance
	l := newLocker(t, live)
	for name, test := range map[string]struct {
		rule middleware.Rule
		want string // in the log
	}{
		"without wait": {middleware.Rule{}, "would have been refused"},
		"with wait":    {middleware.Rule{Wait: time.Minute}, "would have been delayed"},
	} {
		t.Run(name, func(t *testing.T) {
			var log safeBuffer
			inside, release := make(chan struct{}, 1), make(chan struct{})
			rule := test.rule
			rule.DryRun, rule.Dedupe, rule.Logger = true, "{header.Delivery}", slog.New(slog.NewTextHandler(&log, nil))
			server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Block") != "" {
					inside <- struct{}{}
					<-release
				}
				turn, _ := middleware.TurnFromContext(r.Context())
				_, _ = io.WriteString(w, string(turn.Outcome))
			}, rule))
			done := make(chan received)
			go func() { done <- post(t, server.URL, "Order", order, "Delivery", "1", "Block", "1") }()
			receive(t, inside, "the first request")
			for want, headers := range map[string][]string{
				"held":      {"Order", order, "Delivery", "2"},
				"duplicate": {"Order", order, "Delivery", "1"},
				"dry_run":   {"Order", "43", "Delivery", "1"},
			} {
				if got := post(t, server.URL, headers...); got.body != want {
					t.Errorf("%v: %q, want %q", headers, got.body, want)
				}
			}
			close(release)
			if got := receive(t, done, "the first response"); got.body != "dry_run" {
				t.Errorf("the first: %q", got.body)
			}
			if got := post(t, server.URL, "Order", order, "Delivery", "1"); got.body != "dry_run" {
				t.Errorf("after the first: %q", got.body)
			}
			if !strings.Contains(log.String(), test.want) || strings.Contains(log.String(), order) {
				t.Errorf("log without %q, or with a key:\n%s", test.want, &log)
			}
		})
	}
}
