package middleware_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// logged are the lines of a log in JSON, without their times.
func logged(t *testing.T, log *safeBuffer) (lines []map[string]any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(log.String()))
	for decoder.More() {
		line := make(map[string]any)
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		delete(line, "time")
		lines = append(lines, line)
	}
	return lines
}

// The first refusal of each kind is logged at once, and the next line says how many have not been.
func TestRefusalsInLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log safeBuffer
		logger := slog.New(slog.NewJSONHandler(&log, nil))
		l := newLocker(t, live)
		hold(t, l, "order:s3cret")
		handler := orders(l, ok, middleware.Rule{Name: "orders", Logger: logger})
		send := func(order string, times int) {
			for range times {
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Header.Set("Order", order)
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		}
		line := func(outcome, detail string, status float64) map[string]any {
			return map[string]any{"level": "INFO", "msg": "request is refused", "rule": "orders", "outcome": outcome, "detail": detail, "status": status}
		}
		held, missing := line("held", "another request holds the lock", 423), line("missing_key", "key part {header.Order}: missing or empty", 400)
		held["key_hash"] = lockname.Hash("order:s3cret")

		send("s3cret", 1)
		requireLines(t, &log, held)
		send("s3cret", 2)
		send("", 5) // another outcome
		send("42", 1)
		requireLines(t, &log, held, missing)
		time.Sleep(10*time.Second - time.Nanosecond)
		send("s3cret", 1)
		requireLines(t, &log, held, missing)
		time.Sleep(time.Nanosecond)
		send("s3cret", 2)
		again := line("held", "another request holds the lock", 423)
		again["not_logged"], again["key_hash"] = 3.0, lockname.Hash("order:s3cret")
		requireLines(t, &log, held, missing, again)
	})
}

func requireLines(t *testing.T, log *safeBuffer, want ...map[string]any) {
	t.Helper()
	got, _ := json.Marshal(logged(t, log))
	wanted, _ := json.Marshal(want)
	if string(got) != string(wanted) {
		t.Errorf("logged %s\nwant   %s", got, wanted)
	}
}

// What the server is to blame for is a warning, with the masters' errors. What clients do is not, and no line shows a key.
func TestLevelsOfRefusals(t *testing.T) {
	t.Parallel()
	l, noQuorum := newLocker(t, live), newLocker(t, dead)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for name, test := range map[string]struct {
		locker  *redlock.Locker
		rule    middleware.Rule
		client  context.Context
		message string
		level   string
		outcome string
		masters bool // are named
	}{
		"no quorum":    {noQuorum, middleware.Rule{}, t.Context(), "request is refused", "WARN", "no_quorum", true},
		"unprotected":  {noQuorum, middleware.Rule{OnNoQuorum: middleware.Pass}, t.Context(), "request is served without its lock", "WARN", "no_quorum", true},
		"unsigned":     {l, middleware.Rule{Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"key"}}}}, t.Context(), "request is refused", "WARN", "bad_signature", false},
		"lost":         {l, middleware.Rule{MaxHold: time.Millisecond}, t.Context(), "request lost its lock", "WARN", "lost", false},
		"client left":  {l, middleware.Rule{Wait: bound}, stopped, "request is refused", "DEBUG", "canceled", false},
		"no such body": {l, middleware.Rule{Dedupe: "{body.id}"}, t.Context(), "request is refused", "INFO", "unsupported_body", false},
	} {
		t.Run(name, func(t *testing.T) {
			var log safeBuffer
			rule := test.rule
			rule.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			handler := middleware.New(test.locker, "order:{header.Order}", rule)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if name == "lost" {
					<-r.Context().Done()
				}
			}))
			r := httptest.NewRequestWithContext(test.client, http.MethodPost, "/", strings.NewReader("s3cret"))
			r.Header.Set("Order", "s3cret")
			handler.ServeHTTP(httptest.NewRecorder(), r)
			var found bool
			for _, line := range logged(t, &log) {
				found = found || line["msg"] == test.message && line["level"] == test.level && line["outcome"] == test.outcome && line["rule"] == "order:{header.Order}"
			}
			if text := log.String(); !found || strings.Contains(text, "s3cret") || strings.Contains(text, "127.0.0.1") != test.masters {
				t.Errorf("want %q at %s, no key, and masters: %v; got\n%s", test.message, test.level, test.masters, text)
			}
		})
	}
}

// A middleware around this one finds the turn of each request, and its log has no key unless asked to.
func TestNoteTurn(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "inner:held")
	serveNoted := func(h http.Handler, headers ...string) (turn middleware.Turn, ok bool, log string) {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		ctx, noted := middleware.NoteTurn(r.Context())
		if _, ok := noted(); ok {
			t.Error("there is a turn before the request")
		}
		h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		turn, ok = noted()
		var text strings.Builder
		slog.New(slog.NewTextHandler(&text, nil)).Info("handled request", "redlock", turn)
		_, log, _ = strings.Cut(strings.TrimSpace(text.String()), "handled request\" ")
		return turn, ok, log
	}
	if _, ok, _ := serveNoted(http.HandlerFunc(ok)); ok {
		t.Error("a request that reaches no rule has a turn")
	}
	outer := middleware.New(l, "outer:{header.Outer}", middleware.Rule{Name: "outer", OnMissingKey: middleware.Pass})
	inner := middleware.New(l, "inner:{header.Inner}", middleware.Rule{Name: "inner"})
	nested := outer(inner(http.HandlerFunc(ok)))
	for _, test := range []struct {
		handler http.Handler
		headers []string
		want    string
	}{
		{outer(http.HandlerFunc(ok)), []string{"Outer", "42"}, "redlock.rule=outer redlock.outcome=acquired redlock.waited=W redlock.fence=F"},
		{outer(http.HandlerFunc(ok)), nil, `redlock.rule=outer redlock.outcome=missing_key redlock.waited=W redlock.detail="key part {header.Outer}: missing or empty"`},
		{nested, []string{"Outer", "42", "Inner", "43"}, "redlock.rule=inner redlock.outcome=acquired redlock.waited=W redlock.fence=F"},
		{nested, []string{"Outer", "42", "Inner", "held"}, `redlock.rule=inner redlock.outcome=held redlock.waited=W redlock.detail="another request holds the lock"`},
	} {
		turn, ok, log := serveNoted(test.handler, test.headers...)
		fields := strings.Split(log, " redlock.")
		for i, field := range fields {
			for name, letter := range map[string]string{"waited=": "W", "fence=": "F"} {
				if strings.HasPrefix(field, name) {
					fields[i] = name + letter
				}
			}
		}
		if log = strings.Join(fields, " redlock."); !ok || log != test.want {
			t.Errorf("%v %+v: logged %s\nwant %s", ok, turn, log, test.want)
		}
	}
	// The rule around has lost its lock: that is what matters.
	short := middleware.New(l, "outer:{header.Outer}", middleware.Rule{Name: "outer", MaxHold: time.Millisecond})
	untilLost := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		<-r.Context().Done()
	})
	if turn, ok, log := serveNoted(short(inner(untilLost)), "Outer", "42", "Inner", "43"); !ok || turn.Rule != "outer" || turn.Outcome != middleware.OutcomeLost || !strings.Contains(log, "redlock.outcome=lost") {
		t.Errorf("%v %+v, want that of the rule that has lost its lock; logged %s", ok, turn, log)
	}
}
