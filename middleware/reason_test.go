package middleware_test

import (
	"cmp"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// Each response that isn't remembered, or not in whole, has a line in the log and a count, with its reason.
func TestReasons(t *testing.T) {
	t.Parallel()
	type test struct {
		answer  http.HandlerFunc
		rule    middleware.Rule
		masters []string
		runs    int64
	}
	release := func(r *http.Request) { // the operator has seen enough
		turn, _ := middleware.TurnFromContext(r.Context())
		_ = turn.Lock.Unlock()
	}
	for why, test := range map[middleware.Reason]test{
		middleware.ReasonNotFinal:  {answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }},
		middleware.ReasonBrokenOff: {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		middleware.ReasonTruncated: {answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "short")
		}},
		middleware.ReasonStream: {answer: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") }},
		middleware.ReasonHijacked: {answer: func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}},
		middleware.ReasonTooLarge:  {answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "more than") }, rule: middleware.Rule{RememberSize: 8}, runs: 1},
		"too_large ":               {answer: func(w http.ResponseWriter, _ *http.Request) { w.Header()["X"] = make([]string, 5000) }, runs: 1},
		middleware.ReasonLostLease: {answer: func(w http.ResponseWriter, r *http.Request) { release(r); ok(w, r) }},
		middleware.ReasonNoQuorum:  {answer: ok, rule: middleware.Rule{OnNoQuorum: middleware.Pass}, masters: dead},
	} {
		t.Run(string(why), func(t *testing.T) {
			t.Parallel()
			var log safeBuffer
			n, c := &notes{}, &cashier{answer: test.answer}
			rule := test.rule
			rule.Dedupe, rule.Remember, rule.Observer, rule.Name, rule.Logger = "{header.Id}", hour, n, "pay", slog.New(slog.NewTextHandler(&log, nil))
			if test.masters == nil {
				test.masters = live
			}
			locked, ended := orders(newLocker(t, test.masters), c.ServeHTTP, rule), make(chan bool, 1)
			server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { ended <- true }() // a client whose connection was hijacked has left before
				locked.ServeHTTP(w, r)
			}))
			for range 2 {
				if resp, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42", "Id", "a")); err == nil {
					_ = resp.Body.Close()
				}
				receive(t, ended, "the end of the handler")
			}
			reason, runs := middleware.Reason(strings.TrimSpace(string(why))), cmp.Or(int(test.runs), 2)
			eventually(t, "the Observer is told", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return slices.Equal(n.reasons, slices.Repeat([]middleware.Reason{reason}, runs))
			})
			c.requireRuns(t, int64(runs))
			if !strings.Contains(log.String(), "rule=pay reason="+string(reason)) || strings.Contains(log.String(), "order:42") {
				t.Errorf("the log has %s", log.String())
			}
			if !slices.Contains(middleware.Reasons(), reason) {
				t.Errorf("%s is missing from Reasons", reason)
			}
		})
	}
}

// A response that the masters don't confirm has a reason, too.
func TestReasonOfMastersThatAreGone(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		n := &notes{}
		rule := orders(net.Locker(t), func(w http.ResponseWriter, r *http.Request) {
			for _, s := range net.Servers[1:] {
				s.Kill()
			}
			ok(w, r)
		}, middleware.Rule{Dedupe: "{header.Id}", Remember: hour, Observer: n})
		if w := serveInside(rule, "Order", "42", "Id", "a"); w.StatusCode != http.StatusOK {
			t.Errorf("%d %s", w.StatusCode, w.body)
		}
		eventually(t, "the Observer is told", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return slices.Equal(n.reasons, []middleware.Reason{middleware.ReasonNoQuorum})
		})
	})
}

// A final response whose lock on the keys is lost at the last moment is counted.
func TestReasonOfALostKey(t *testing.T) {
	t.Parallel()
	l, n := newLocker(t, live), &notes{}
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		force(t, l, r)
		ok(w, r)
	}, middleware.Rule{Dedupe: "{header.Id}", Remember: hour, Observer: n}))
	resp, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42", "Id", "a"))
	if err == nil {
		_ = resp.Body.Close()
	}
	eventually(t, "the Observer is told", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.reasons) == 1
	})
}

// Whom authentication has found is the scope of a rule that sets none: a token that is refreshed changes nothing.
func TestUserIsTheScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, live)
		user := func(r *http.Request) string { return r.Header.Get("Verified-User") }
		for name, rule := range map[string]middleware.Rule{"preset": {Preset: "idempotency-key", User: user}, "none": {IdempotencyKey: "required", Remember: hour, User: user}} {
			c := &cashier{answer: receipt}
			h := middleware.New(l, "", rule)(c)
			pay := func(headers ...string) received {
				return serveInside(h, append(headers, "Idempotency-Key", name)...)
			}
			ann := pay("Authorization", "Bearer 1", "Verified-User", "Ann")
			requireReplay(t, pay("Authorization", "Bearer 2", "Verified-User", "Ann"), ann)
			c.requireRuns(t, 1)
			pay("Authorization", "Ann")
			pay("Authorization", "Bearer 1", "Verified-User", "ann")
			c.requireRuns(t, 3)
			if _, err := inspect.Forget(t.Context(), l, middleware.Delivery{ID: name, Host: "example.com", User: "Ann"}.Key()); err != nil {
				t.Error(err)
			}
		}
		h := middleware.New(l, "", middleware.Rule{IdempotencyKey: "required", Remember: hour, Scope: "{header.Tenant}", User: user})(&cashier{answer: receipt})
		first := serveInside(h, "Idempotency-Key", "a", "Verified-User", "Ann", "Tenant", "1")
		requireReplay(t, serveInside(h, "Idempotency-Key", "a", "Verified-User", "Bob", "Tenant", "1"), first) // as the rule says
	})
}

// What is unsafe in how IDs are told apart is logged: for the rule, and when a client shows it.
func TestWarningsOfScopes(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	warns := func(rule middleware.Rule, authorization string) string {
		var log safeBuffer
		rule.Logger = slog.New(slog.NewTextHandler(&log, nil))
		h := middleware.New(l, "order:{header.Order}", rule)(http.HandlerFunc(ok))
		if authorization != "" {
			log = safeBuffer{}
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Order", "42")
			r.Header.Set("Idempotency-Key", "a")
			r.Header.Set("Authorization", authorization)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		return log.String()
	}
	id, preset := middleware.Rule{IdempotencyKey: "required", Remember: hour}, middleware.Rule{Preset: "idempotency-key"}
	own := id
	own.Scope = "{header.authorization}"
	shared := id
	shared.Scope = "off" // as the warning says
	for _, test := range []struct {
		rule          middleware.Rule
		authorization string
		want          string
	}{
		{id, "", "whoever sends the same keys and ID gets them"},
		{shared, "", ""},
		{own, "", "changes with a refreshed token"},
		{middleware.Rule{Preset: "stripe", Remember: hour, Verify: []middleware.Verify{{Scheme: "stripe", Secrets: []string{"x"}}}}, "", ""},
		{middleware.Rule{Preset: "stripe", Remember: hour}, "", "whoever sends"},
		{preset, "", ""},
		{preset, "Bearer sk_live_1", ""}, {preset, "Basic YTpi", ""}, {preset, "Bearer eyJ.a", ""},
		{preset, "Bearer eyJhbGciOiJIUzI1NiJ9.e30.x", "refreshed token"}, {preset, "Digest username=a, nonce=b", "(digest)"},
		{preset, "AWS4-HMAC-SHA256 Credential=a", "(aws4-hmac-sha256)"}, {preset, "DPoP x", "(dpop)"},
	} {
		got := warns(test.rule, test.authorization)
		if test.want == "" && got != "" || !strings.Contains(got, test.want) || test.authorization != "" && strings.Contains(got, test.authorization) {
			t.Errorf("%+v %q: %q, want %q", test.rule.Scope, test.authorization, got, test.want)
		}
	}
}
