package middleware_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// A key that the request already holds is not locked again.
func TestReentrancy(t *testing.T) {
	t.Parallel()
	l, other := newLocker(t, live), newLocker(t, live)
	var outer, fence string
	inner := orders(l, func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		if turn.Key != "order:42" || turn.Outcome != middleware.OutcomeAcquired || turn.Lock == nil {
			t.Errorf("turn %+v", turn)
		}
		fence = r.Header.Get("Fencing-Token")
		ok(w, r)
	}, middleware.Rule{})
	// with one rule between the two, and one that has other masters
	between := middleware.New(l, "between", middleware.Rule{})(inner)
	elsewhere := orders(other, between.ServeHTTP, middleware.Rule{})
	server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
		outer = r.Header.Get("Fencing-Token")
		elsewhere.ServeHTTP(w, r)
		if _, err := l.TryLock(r.Context(), "order:42"); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("the inner rule freed the lock: %v", err)
		}
	}, middleware.Rule{}))
	if got := post(t, server.URL, "Order", "42", "Fencing-Token", "9"); got.body != "served" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	if outer == "" || fence != outer {
		t.Errorf("fence %q outside and %q inside, want the same", outer, fence)
	}
	requireFree(t, l, "order:42")
	requireFree(t, other, "order:42")
	requireFree(t, l, "between")
}

// A request that comes to a rule when an outer one has lost its lock is told so: its client hasn't left.
func TestOuterLockIsLost(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for name, key := range map[string]string{"the same key": "order:{header.Order}", "another key": "other", "a key in the body": "{json.id:int}"} {
		inner := middleware.New(l, key, middleware.Rule{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error(name, "is served") }))
		outer := orders(l, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			inner.ServeHTTP(w, r)
		}, middleware.Rule{MaxHold: time.Millisecond})
		got := post(t, serve(t, outer).URL, "Order", name) // a lost lock is released in the background: another key for each
		if got.StatusCode != http.StatusInternalServerError || got.Header.Get("Redlock-Outcome") != "lost" || !strings.Contains(got.body, "a rule before this one has lost its lock") {
			t.Errorf("%s: %d %q %s", name, got.StatusCode, got.Header, got.body)
		}
	}
}

// What isn't a rule doesn't know that the request holds the key: it is told so at once, in place of waiting for itself.
func TestHeldByTheRequestItself(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	nobody := func(context.Context, *redlock.Lock) error {
		t.Error("two have the key")
		return nil
	}
	for name, rule := range map[string]middleware.Rule{"canceled": {OnClientAbort: middleware.Cancel, Wait: bound}, "to its end": {Wait: bound}} {
		within := orders(l, func(w http.ResponseWriter, r *http.Request) {
			err := l.Do(r.Context(), "order:42", nobody, redlock.WithWait(bound))
			if !errors.Is(err, redlock.ErrHeldByCaller) {
				t.Errorf("%s, Do in the handler: %v", name, err)
			}
			middleware.RefusalOf(r.Context(), err).Write(w)
		}, rule)
		requireItself := func(where string, status int, header http.Header, body string) {
			t.Helper()
			if status != http.StatusInternalServerError || header.Get("Redlock-Outcome") != "failed" || header.Get("Retry-After") != "" || !strings.Contains(body, "holds itself") {
				t.Errorf("%s, %s: %d %q %s", name, where, status, header, body)
			}
		}
		got := post(t, serve(t, within).URL, "Order", "42")
		requireItself("Do in the handler", got.StatusCode, got.Header, got.body)

		inner := orders(l, func(http.ResponseWriter, *http.Request) { _ = nobody(nil, nil) }, rule)
		if err := l.Do(t.Context(), "order:42", func(ctx context.Context, _ *redlock.Lock) error {
			r, w := httptest.NewRequest(http.MethodPost, "/", nil).WithContext(ctx), httptest.NewRecorder()
			r.Header.Set("Order", "42")
			inner.ServeHTTP(w, r)
			requireItself("the rule in Do", w.Code, w.Header(), w.Body.String())
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// A lock that the request has released doesn't count: work that a handler left behind takes the key again.
func TestReentrancyAfterTheLock(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	var left *http.Request
	outer := orders(l, func(_ http.ResponseWriter, r *http.Request) {
		left = r.WithContext(context.WithoutCancel(r.Context()))
	}, middleware.Rule{})
	post(t, serve(t, outer).URL, "Order", "42")
	serveLeft := func(rule middleware.Rule) *httptest.ResponseRecorder {
		inner := orders(l, func(_ http.ResponseWriter, r *http.Request) {
			if turn, _ := middleware.TurnFromContext(r.Context()); turn.Lock.Err() != nil || r.Context().Err() != nil {
				t.Errorf("served with a lock that is gone: %v, %v", turn.Lock.Err(), context.Cause(r.Context()))
			}
		}, rule)
		w := httptest.NewRecorder()
		inner.ServeHTTP(w, left)
		return w
	}
	for _, rule := range []middleware.Rule{{OnClientAbort: middleware.Cancel}, {}} {
		if w := serveLeft(rule); w.Code != http.StatusOK {
			t.Errorf("while the key is free: %d %s", w.Code, w.Body)
		}
	}
	hold(t, l, "order:42")
	if w := serveLeft(middleware.Rule{}); w.Code != http.StatusLocked {
		t.Errorf("while another has the key: %d %s", w.Code, w.Body)
	}
}

// A rule that takes no lock keeps the fence of the rule around it, and no other.
func TestFenceAroundARuleThatPasses(t *testing.T) {
	t.Parallel()
	l, noQuorum := newLocker(t, live), newLocker(t, dead)
	for name, inner := range map[string]func(http.Handler) http.Handler{
		"missing key":      middleware.New(l, "{header.None}", middleware.Rule{OnMissingKey: middleware.Pass}),
		"no quorum":        middleware.New(noQuorum, "{header.Order}", middleware.Rule{OnNoQuorum: middleware.Pass}),
		"dry run":          middleware.New(l, "{header.Order}", middleware.Rule{DryRun: true}),
		"another spelling": middleware.New(l, "{header.Order}", middleware.Rule{DryRun: true, FenceHeader: "fencing_token"}),
		"another name":     middleware.New(l, "{header.Order}", middleware.Rule{DryRun: true, FenceHeader: "Inner-Fence"}),
		"two rules": func(h http.Handler) http.Handler {
			return middleware.New(l, "{header.None}", middleware.Rule{OnMissingKey: middleware.Pass})(middleware.New(l, "{header.Order}", middleware.Rule{DryRun: true})(h))
		},
	} {
		var outer string
		server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
			outer = r.Header.Get("Fencing-Token")
			inner(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if fence := r.Header.Get("Fencing-Token"); fence != outer || fence == "9" || fence == "" {
					t.Errorf("%s: fence %q outside and %q inside", name, outer, fence)
				}
				if fence := r.Header.Get("Inner-Fence"); fence != "" && name == "another name" {
					t.Errorf("%s: fence %q of the client", name, fence)
				}
				ok(w, r)
			})).ServeHTTP(w, r)
		}, middleware.Rule{}))
		if got := post(t, server.URL, "Order", "42", "Fencing-Token", "9", "Inner-Fence", "9"); got.body != "served" {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
		alone := serve(t, inner(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if fence := r.Header.Get("Fencing-Token"); fence != "" && name != "another name" {
				t.Errorf("%s: fence %q of the client", name, fence)
			}
			ok(w, r)
		})))
		if got := post(t, alone.URL, "Order", "42", "Fencing-Token", "9"); got.body != "served" {
			t.Errorf("%s, alone: %d %s", name, got.StatusCode, got.body)
		}
	}
}

// TestPassesWithHalfOfItsKeys: a rule that is passed without its lock holds nothing for a rule inside it, although a rule around it holds
// one of its keys.
func TestPassesWithHalfOfItsKeys(t *testing.T) {
	simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
		l := net.Locker(t)
		inner := middleware.New(l, "second", middleware.Rule{})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it is served without its lock") }))
		both := middleware.New(l, "first", middleware.Rule{Keys: []string{"second"}, OnNoQuorum: middleware.Pass})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if turn, _ := middleware.TurnFromContext(r.Context()); turn.Lock != nil {
				t.Error("a turn without its lock has another one")
			}
			inner.ServeHTTP(w, r)
		}))
		outer := middleware.New(l, "first", middleware.Rule{})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			net.Servers[0].Kill()
			both.ServeHTTP(w, r)
		}))
		if got := serveInside(outer); got.StatusCode != http.StatusConflict {
			t.Errorf("%s %s", got.Status, got.body)
		}
	})
}
