package middleware_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// ordersName is the name that the rule of orders has by default.
const ordersName = "order:{header.Order}"

// notes is an Observer that remembers what it was told.
type notes struct {
	mu                sync.Mutex
	waiting           int // now
	waited            int // requests that have begun to wait
	remembered, bytes int
	reasons           []middleware.Reason // one for each response, empty if it is remembered
	acquired          int
	can               []middleware.Possible // of each rule that has begun
	done              []done
	waits             chan struct{} // gets a value for each that begins to wait; nil for none
}

type done struct {
	rule    string
	outcome middleware.Outcome
	held    bool // for any time
}

func (n *notes) Waits(_ string, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting += by
	if by > 0 {
		n.waited++
		if n.waits != nil {
			n.waits <- struct{}{}
		}
	}
}

func (n *notes) Acquired(string, time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.acquired++
}

func (n *notes) Begin(_ string, can middleware.Possible) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.can = append(n.can, can)
}

func (n *notes) Done(rule string, outcome middleware.Outcome, held time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.ContainsFunc(n.can, func(can middleware.Possible) bool { return slices.Contains(can.Outcomes, outcome) }) {
		panic(fmt.Sprintf("%s was said to be impossible: %+v", outcome, n.can))
	}
	n.done = append(n.done, done{rule, outcome, held > 0})
}

func (n *notes) Quota(string, bool, int64, int64)  {}
func (n *notes) Passed(string, middleware.Outcome) {}

func (n *notes) Remembered(_ string, bytes int, why middleware.Reason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons = append(n.reasons, why)
	if bytes > 0 {
		n.remembered++
		n.bytes += bytes
	}
}

// require compares what the Observer was told by the end.
func (n *notes) require(t *testing.T, waited, acquired int, want ...done) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if !reflect.DeepEqual(n.done, want) || n.waiting != 0 || n.waited != waited || n.acquired != acquired {
		t.Errorf("%+v, %d waiting, %d have waited, %d acquired; want %+v, none waiting, %d, %d", n.done, n.waiting, n.waited, n.acquired, want, waited, acquired)
	}
}

// Each way through a rule ends in exactly one call of Done, and whoever waits stops waiting.
func TestObserver(t *testing.T) {
	t.Parallel()
	l, noQuorum, closed := newLocker(t, live), newLocker(t, dead), newLocker(t, live)
	hold(t, l, "order:held")
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	stopping, stop := context.WithCancel(t.Context())
	stop()
	untilLost := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, c := range map[string]struct {
		locker           *redlock.Locker // l if it is nil
		rule             middleware.Rule
		handler          http.HandlerFunc // ok if it is nil
		order, upgrade   string
		want             middleware.Outcome
		waited, acquired int
	}{
		"served":                     {order: "42", want: "acquired", acquired: 1},
		"served, and may wait":       {order: "42", rule: middleware.Rule{Wait: bound}, want: "acquired", waited: 1, acquired: 1},
		"the handler panics":         {order: "42", handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "acquired", acquired: 1},
		"held":                       {order: "held", want: "held"},
		"held, and waits":            {order: "held", rule: middleware.Rule{Wait: 20 * time.Millisecond}, want: "held", waited: 1},
		"held, and the server stops": {order: "held", rule: middleware.Rule{Wait: bound, Shutdown: stopping}, want: "stopping"},
		// Keys of their own: they are free a moment after the handlers have ended.
		"lost":                          {order: "43", rule: middleware.Rule{MaxHold: 50 * time.Millisecond}, handler: untilLost, want: "lost", acquired: 1},
		"lost after the response began": {order: "44", rule: middleware.Rule{MaxHold: 50 * time.Millisecond}, handler: func(w http.ResponseWriter, r *http.Request) { ok(w, r); untilLost(w, r) }, want: "lost", acquired: 1},
		"no quorum":                     {locker: noQuorum, order: "42", want: "no_quorum"},
		"no quorum, passed":             {locker: noQuorum, order: "42", rule: middleware.Rule{OnNoQuorum: middleware.Pass}, want: "no_quorum"},
		"missing key":                   {want: "missing_key"},
		"missing key, passed":           {rule: middleware.Rule{OnMissingKey: middleware.Pass}, want: "missing_key"},
		"the passed one panics":         {rule: middleware.Rule{OnMissingKey: middleware.Pass}, handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "missing_key"},
		"unsigned":                      {order: "42", rule: middleware.Rule{Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"secret"}}}}, want: "bad_signature"},
		"upgrade":                       {order: "42", upgrade: "websocket", want: "upgrade"},
		"body":                          {order: "42", rule: middleware.Rule{BufferBody: new(true), MaxBody: 1}, want: "body_too_large"},
		"closed":                        {locker: closed, order: "42", want: "failed"},
		"dry run":                       {order: "42", rule: middleware.Rule{DryRun: true}, want: "dry_run"},
		"dry run without a key":         {rule: middleware.Rule{DryRun: true}, want: "missing_key"},
		"panics before the lock":        {order: "42", rule: middleware.Rule{ClientAddress: panics, BufferBody: new(true)}, want: "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.locker == nil {
				c.locker = l
			}
			if c.handler == nil {
				c.handler = ok
			}
			n := &notes{}
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
			r.Header.Set("Order", c.order)
			if c.upgrade != "" {
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", c.upgrade)
			}
			func() {
				defer func() { _ = recover() }()
				rule := c.rule
				rule.Observer = n
				orders(c.locker, c.handler, rule).ServeHTTP(httptest.NewRecorder(), r)
			}()
			n.require(t, c.waited, c.acquired, done{rule: ordersName, outcome: c.want, held: c.acquired > 0})
		})
	}
}

func panics(*http.Request) string { panic("no address") }

// A request of which each rule around the handler has the same key is done once for each rule; only one of them has held it.
func TestObserverOfNestedRules(t *testing.T) {
	t.Parallel()
	l, n := newLocker(t, live), &notes{}
	handler := orders(l, orders(l, ok, middleware.Rule{Observer: n}).ServeHTTP, middleware.Rule{Observer: n})
	post(t, serve(t, handler).URL, "Order", "42")
	n.require(t, 0, 1, done{rule: ordersName, outcome: "acquired"}, done{rule: ordersName, outcome: "acquired", held: true})
}

// A second delivery is done when it is refused, and the first when it has been served.
func TestObserverOfDuplicate(t *testing.T) {
	t.Parallel()
	l, n := newLocker(t, live), &notes{}
	inside, release := make(chan struct{}), make(chan struct{})
	server := serve(t, orders(l, func(http.ResponseWriter, *http.Request) { inside <- struct{}{}; <-release },
		middleware.Rule{Observer: n, Dedupe: "{header.Delivery}"}))
	first := make(chan struct{})
	go func() {
		defer close(first)
		post(t, server.URL, "Order", "42", "Delivery", "1")
	}()
	<-inside
	post(t, server.URL, "Order", "42", "Delivery", "1")
	n.require(t, 0, 1, done{rule: ordersName, outcome: "duplicate"})
	close(release)
	<-first
	n.require(t, 0, 1, done{rule: ordersName, outcome: "duplicate"}, done{rule: ordersName, outcome: "acquired", held: true})
}

// Waiting ends for a request whose client leaves, and for one that the server's shutdown sends away.
func TestObserverOfWaitThatIsCutOff(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[string]middleware.Outcome{"the client leaves": "canceled", "the server stops": "stopping"} {
		t.Run(outcome, func(t *testing.T) {
			l, n := newLocker(t, live), &notes{waits: make(chan struct{}, 1)}
			hold(t, l, "order:42")
			shutdown, stop := context.WithCancel(t.Context())
			defer stop()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			r := httptest.NewRequest(http.MethodPost, "/", nil).WithContext(ctx)
			r.Header.Set("Order", "42")
			served := make(chan struct{})
			go func() {
				defer close(served)
				orders(l, ok, middleware.Rule{Observer: n, Wait: time.Hour, Shutdown: shutdown}).ServeHTTP(httptest.NewRecorder(), r)
			}()
			<-n.waits
			if want == "canceled" {
				leave()
			} else {
				stop()
			}
			receive(t, served, "the response")
			n.require(t, 1, 0, done{rule: ordersName, outcome: want})
		})
	}
}

// After a handler that broke off, the request is done when its lock is released, here by the Locker that closes.
func TestObserverOfHoldAfterAbort(t *testing.T) {
	t.Parallel()
	l, n := newLocker(t, live), &notes{}
	handler := orders(l, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		middleware.Rule{Observer: n, HoldAfterAbort: time.Hour})
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Order", "42")
	handler.ServeHTTP(httptest.NewRecorder(), r)
	n.require(t, 0, 1)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		n.mu.Lock()
		ended := len(n.done) > 0
		n.mu.Unlock()
		if ended {
			break
		}
	}
	n.require(t, 0, 1, done{rule: ordersName, outcome: "acquired", held: true})
}

// The Observer knows of a request before its client has the whole response, so that who has it also finds it counted.
func TestObserverKnowsBeforeTheClient(t *testing.T) {
	t.Parallel()
	l, n := newLocker(t, live), &notes{}
	server := serve(t, orders(l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
	}, middleware.Rule{Observer: n}))
	post(t, server.URL, "Order", "42")
	n.require(t, 0, 1, done{rule: ordersName, outcome: "acquired", held: true})
}
