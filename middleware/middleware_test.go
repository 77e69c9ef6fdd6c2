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
		"must not be empty":          func() { middleware.New(l, "") },
		"unknown placeholder {x}":    func() { middleware.New(l, "order:{x}") },
		"WithKeys and WithPreset":    func() { middleware.NewFunc(l, nil, middleware.WithPreset("stripe")) },
		"preset \"gitlab\"":          func() { middleware.New(l, "", middleware.WithPreset("gitlab")) },
		"the Locker is nil":          func() { middleware.New(nil, "k") },
		"the KeyFunc is nil":         func() { middleware.NewFunc(l, nil) },
		"the Verifier is nil":        func() { middleware.New(l, "k", middleware.WithVerify(nil)) },
		"dedupe: ":                   func() { middleware.New(l, "k", middleware.WithDedupe("{x}")) },
		"above the budget":           func() { middleware.New(l, "k", middleware.WithMaxBody(65<<20)) },
		"max_body -1":                func() { middleware.New(l, "k", middleware.WithMaxBody(-1)) },
		"body_timeout -1s":           func() { middleware.New(l, "k", middleware.WithBodyTimeout(-time.Second)) },
		"replay_window -1s":          func() { middleware.New(l, "k", middleware.WithReplayWindow(-time.Second)) },
		"nothing separates":          func() { middleware.New(l, "{path.0}{path.1}") },
		"wait -1s":                   func() { middleware.New(l, "k", middleware.WithWait(-time.Second)) },
		"ttl -1s":                    func() { middleware.New(l, "k", middleware.WithTTL(-time.Second)) },
		"above the max ttl 30s":      func() { middleware.New(l, "k", middleware.WithTTL(time.Hour)) },
		"max_hold -1s":               func() { middleware.New(l, "k", middleware.WithMaxHold(-time.Second)) },
		"fence_header \"a b\"":       func() { middleware.New(l, "k", middleware.WithFenceHeader("a b")) },
		"fence_header \"te\"":        func() { middleware.New(l, "k", middleware.WithFenceHeader("te")) },
		"{header.A}: this is the ":   func() { middleware.New(l, "{path.1|header.A}", middleware.WithFenceHeader("a")) },
		"{header.Fencing-Token}: th": func() { middleware.New(l, "{path.1}", middleware.WithKeys("{header.Fencing-Token}")) },
		"dedupe: key template":       func() { middleware.New(l, "k", middleware.WithDedupe("{header.A}"), middleware.WithFenceHeader("A")) },
		"scope: key template": func() {
			middleware.New(l, "k", middleware.WithFenceHeader("A-B"), middleware.WithScope("{header.A_b}"))
		},
		"want another header, such":  func() { middleware.New(l, "k", middleware.WithFenceHeader("Content_Length")) },
		"held_status 200":            func() { middleware.New(l, "k", middleware.WithHeldStatus(http.StatusOK)) },
		"held_status 600":            func() { middleware.New(l, "k", middleware.WithHeldStatus(600)) },
		"no_quorum_status 399":       func() { middleware.New(l, "k", middleware.WithNoQuorumStatus(399)) },
		"no_quorum_status -1: must ": func() { middleware.NewFunc(l, nil, middleware.WithNoQuorumStatus(-1)) },
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
	logger := middleware.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
	l := newLocker(t, live)
	orders(l, ok, logger)
	if log.String() != "" {
		t.Errorf("log: %s", &log)
	}
	middleware.New(l, "everything", logger)
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "everything") {
		t.Errorf("log: %s", &log)
	}
}
