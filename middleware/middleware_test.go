package middleware_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func TestNewPanics(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for want, f := range map[string]func(){
		"key: want at least one":           func() { middleware.New(l, "", middleware.Rule{}) },
		"unknown placeholder {x}":          func() { middleware.New(l, "order:{x}", middleware.Rule{}) },
		"from a function, and from":        func() { middleware.NewFunc(l, middleware.IdempotencyKey, middleware.Rule{Preset: "stripe"}) },
		"preset \"gitlab\"":                func() { middleware.New(l, "", middleware.Rule{Preset: "gitlab"}) },
		"the Locker is nil":                func() { middleware.New(nil, "k", middleware.Rule{}) },
		"the KeyFunc is nil":               func() { middleware.NewFunc(l, nil, middleware.Rule{}) },
		"dedupe: ":                         func() { middleware.New(l, "k", middleware.Rule{Dedupe: "{x}"}) },
		"on_no_quorum \"serve\": ":         func() { middleware.New(l, "k", middleware.Rule{OnNoQuorum: "serve"}) },
		"above the budget":                 func() { middleware.New(l, "k", middleware.Rule{MaxBody: 65 << 20}) },
		"max_body -1":                      func() { middleware.New(l, "k", middleware.Rule{MaxBody: -1}) },
		"body_timeout: want a dura":        func() { middleware.New(l, "k", middleware.Rule{BodyTimeout: -time.Second}) },
		"replay_window: want a dura":       func() { middleware.New(l, "k", middleware.Rule{ReplayWindow: -time.Second}) },
		"nothing separates":                func() { middleware.New(l, "{path.0}{path.1}", middleware.Rule{}) },
		"ttl: want a dura":                 func() { middleware.New(l, "k", middleware.Rule{TTL: -time.Second}) },
		"must be at most the max ttl 3m0s": func() { middleware.New(l, "k", middleware.Rule{TTL: time.Hour}) },
		"max_hold: want a dura":            func() { middleware.New(l, "k", middleware.Rule{MaxHold: -time.Second}) },
		"fence_header \"a b\"":             func() { middleware.New(l, "k", middleware.Rule{FenceHeader: "a b"}) },
		"fence_header \"te\"":              func() { middleware.New(l, "k", middleware.Rule{FenceHeader: "te"}) },
		"{header.A}: this is the ":         func() { middleware.New(l, "{path.1|header.A}", middleware.Rule{FenceHeader: "a"}) },
		"{header.Fencing-Token}: th":       func() { middleware.New(l, "{path.1}", middleware.Rule{Keys: []string{"{header.Fencing-Token}"}}) },
		"dedupe: key template":             func() { middleware.New(l, "k", middleware.Rule{Dedupe: "{header.A}", FenceHeader: "A"}) },
		"scope: key template": func() {
			middleware.New(l, "k", middleware.Rule{FenceHeader: "A-B", Scope: "{header.A_b}"})
		},
		"want another header, such":  func() { middleware.New(l, "k", middleware.Rule{FenceHeader: "Content_Length"}) },
		"held_status 200":            func() { middleware.New(l, "k", middleware.Rule{HeldStatus: http.StatusOK}) },
		"held_status 600":            func() { middleware.New(l, "k", middleware.Rule{HeldStatus: 600}) },
		"no_quorum_status 399":       func() { middleware.New(l, "k", middleware.Rule{NoQuorumStatus: 399}) },
		"such as order:{path.1:int}": func() { middleware.New(l, "", middleware.Rule{}) },
		"no_quorum_status -1: must ": func() { middleware.NewFunc(l, middleware.IdempotencyKey, middleware.Rule{NoQuorumStatus: -1}) },
	} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, want) {
					t.Errorf("panic %q, want %q", text, want)
				}
			}()
			f()
		}()
	}
}

func TestGlobalLockIsWarnedAbout(t *testing.T) {
	t.Parallel()
	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	l := newLocker(t, live)
	orders(l, ok, middleware.Rule{Logger: logger})
	if log.String() != "" {
		t.Errorf("log: %s", &log)
	}
	middleware.New(l, "everything", middleware.Rule{Logger: logger})
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "everything") {
		t.Errorf("log: %s", &log)
	}
}
