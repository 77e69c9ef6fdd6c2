package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// A request is bounded, although a lock of the library isn't: by its rule, by the Locker, or by five minutes.
func TestDefaultMaxHold(t *testing.T) {
	t.Parallel()
	for want, opts := range map[time.Duration]struct {
		locker []redlock.Option
		rule   middleware.Rule
	}{
		5 * time.Minute:  {},
		time.Hour:        {locker: []redlock.Option{redlock.WithMaxHold(time.Hour)}},
		20 * time.Minute: {[]redlock.Option{redlock.WithMaxHold(time.Hour)}, middleware.Rule{MaxHold: 20 * time.Minute}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLocker(t, live, opts.locker...)
			var held time.Duration
			handler := orders(l, func(_ http.ResponseWriter, r *http.Request) {
				start := time.Now()
				<-r.Context().Done()
				held = time.Since(start)
				if cause := context.Cause(r.Context()); !errors.Is(cause, redlock.ErrMaxHold) {
					t.Errorf("%v: %v, want ErrMaxHold", want, cause)
				}
			}, opts.rule)
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Order", "42")
			handler.ServeHTTP(httptest.NewRecorder(), r)
			if held != want {
				t.Errorf("held for %v, want %v", held, want)
			}
		})
	}
}

// There is one logger, unless the middleware is given another.
func TestLogsWhereTheLockerDoes(t *testing.T) {
	t.Parallel()
	var lockers, own safeBuffer
	l := newLocker(t, live, redlock.WithLogger(slog.New(slog.NewTextHandler(&lockers, nil))))
	middleware.New(l, "constant", middleware.Rule{})
	middleware.New(l, "another", middleware.Rule{Logger: slog.New(slog.NewTextHandler(&own, nil))})
	if err := l.Close(); err != nil { // which waits for the log
		t.Error(err)
	}
	if !strings.Contains(lockers.String(), "all requests share one lock") {
		t.Errorf("the Locker's log has %q", lockers.String())
	}
	if !strings.Contains(own.String(), "another") || strings.Contains(lockers.String(), "another") {
		t.Errorf("the middleware's log has %q, the Locker's %q", own.String(), lockers.String())
	}
}

// slowLog is one that blocks for a minute at each line.
type slowLog struct{ slog.Handler }

func (slowLog) Enabled(context.Context, slog.Level) bool { return true }

func (slowLog) Handle(context.Context, slog.Record) error { time.Sleep(time.Minute); return nil }

// TestNobodyWaitsForTheLog: the Locker's log holds up no request, refused or served, when it blocks.
func TestNobodyWaitsForTheLog(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		t.Cleanup(func() { time.Sleep(time.Hour) }) // the log has its lines
		l := net.Locker(t, redlock.WithLogger(slog.New(slowLog{})))
		h := orders(l, ok, middleware.Rule{})
		hold(t, l, "order:held")
		for order, want := range map[string]string{"held": "423", "free": "acquired"} {
			if took, ended := request(t, h, order); ended != want || took > time.Second {
				t.Errorf("%s: %s after %v, want %s at once", order, ended, took, want)
			}
		}
	})
}
